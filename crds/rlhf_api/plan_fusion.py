"""Stages of a step that overlap."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf_api.base import Contract, Count
from rlhf_api.calls import CallId

CHECK_STEPS = 8
"""Steps of an engine, each a token of each of its rows, from one look at what is left to the next:
thresholds are met at the same token in every run, which no clock could promise."""


class StageFusion(Contract):
    """Inter-stage fusion: when few responses are left, few engines finish them, and calls that read
    responses begin with those that have ended, on the devices of the other engines.

    Which engines finish them is the mesh of the plan's Finish call.

    Source: RLHFuse (arXiv 2409.13221), inter-stage fusion.
    """

    threshold_rows: Count
    """Responses of the step that are left, at most, when the engines that finish take all of
    them."""
    calls: Annotated[tuple[CallId, ...], Field(min_length=1, max_length=64)]
    """Those that run twice: over the responses that have ended by then, and over the others. In
    program order."""
