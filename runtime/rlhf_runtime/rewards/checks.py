"""Is what a verifier returned one finite number for each sample? Standard library only."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

from rlhf_runtime.rewards.messages import BatchScores, Fault

FLOAT32_MAX = 3.4028234663852886e38


def checked_scores(values: Sequence[Any], num_samples: int) -> BatchScores:
    """Scores of a batch; whatever is no finite number of float32 becomes a fault."""
    if len(values) != num_samples:
        return wrong_count(f"{len(values)} values", num_samples)
    scores = array("f", bytes(4 * len(values)))
    faults: dict[int, tuple[Fault, str]] = {}
    for index, value in enumerate(values):
        try:
            number = _as_number(value)
        except (TypeError, ValueError):
            fault = Fault.NOT_A_NUMBER
        else:
            if math.isfinite(number) and abs(number) <= FLOAT32_MAX:
                scores[index] = number
                continue
            fault = Fault.NON_FINITE
        faults[index] = (fault, f"got {value!r:.200}, allowed a finite number")
    return BatchScores(scores, faults)


def _as_number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("a text")
    return float(value)


def wrong_count(got: str, num_samples: int) -> BatchScores:
    """The fault of a batch for which something else was returned than a number for each sample."""
    return BatchScores(
        batch_fault=Fault.WRONG_COUNT,
        detail=f"got {got} for {num_samples} samples, allowed one number for each sample",
    )
