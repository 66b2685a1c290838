"""Stage fusion: overlapping stages of a step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf_api.base import Contract, Count
from rlhf_api.calls import CallId

# Decode steps between two checks of the number of unfinished responses.
# Counted in steps, not seconds: every run then reaches the threshold at the same token.
CHECK_STEPS = 8


class StageFusion(Contract):
    """Inter-stage fusion: when few responses are unfinished, a few engines finish them, and calls
    that read responses begin with the finished ones on the devices of the other engines.

    The engines that finish are the mesh of the plan's Finish call. Source: RLHFuse (arXiv
    2409.13221), inter-stage fusion.
    """

    threshold_rows: Count
    """Largest number of unfinished responses of a step at which a few engines take all of them."""
    calls: Annotated[tuple[CallId, ...], Field(min_length=1, max_length=64)]
    """Calls that run twice: over the responses that have ended by then, and over the rest. In
    program order."""
