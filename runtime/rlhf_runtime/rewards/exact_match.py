"""Verifier: compares the response with the reference answer."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.rewards.sample import Sample, measures


@measures("exact_match")
def score(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    """Score 1 for a response equal to the reference answer, else 0.

    White space at the ends does not count.

    field: the record's field with the reference answer.

    Raises:
        KeyError: a record without that field.
    """
    return [
        # `str`, because a data file may hold the answer as a number.
        float(sample.response.strip() == str(sample.record[field]).strip())
        for sample in samples
    ]
