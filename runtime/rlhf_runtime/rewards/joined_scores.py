"""Joins the scores of parts of a request. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_runtime.rewards.scores import MAX_NAMED, FailedSamples, Scores

Part = tuple[Sequence[int], Scores]
"""Numbers of samples in the request, rising, and their scores."""


def join_scores(parts: Sequence[Part], num_samples: int) -> Scores:
    """Return the scores of a request that was asked for in parts, as if it had been one request.

    Args:
        parts: every sample of the request is in one of them; each batch is in one part.
        num_samples: of the request.
    """
    values = np.zeros(num_samples, dtype=np.float32)
    valid = np.zeros(num_samples, dtype=np.bool_)
    abstained = np.zeros(num_samples, dtype=np.bool_)
    names = dict.fromkeys(name for _, scores in parts for name in scores.parts)
    columns = {name: np.full(num_samples, np.nan, dtype=np.float32) for name in names}
    errors: Counter[str] = Counter()
    failures: list[FailedSamples] = []
    for numbers, scores in parts:
        positions = np.asarray(numbers, dtype=np.int64)
        values[positions] = scores.values
        valid[positions] = scores.valid
        abstained[positions] = scores.abstained
        for name, column in scores.parts.items():
            columns[name][positions] = column
        errors.update(scores.errors)
        failures += [
            replace(failure, start=int(positions[failure.start])) for failure in scores.failures
        ]
    # By position, not by part: failures are then the same, however the request was cut.
    failures.sort(key=lambda failure: (failure.only_together, failure.start))
    return Scores(
        values,
        valid,
        abstained,
        dict(sorted(errors.items())),
        tuple(failures[:MAX_NAMED]),
        sum(scores.rescored for _, scores in parts),
        columns,
    )
