"""Verifier: is the response exactly the reference answer?"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.rewards.measures import measures
from rlhf_runtime.rewards.sample import Sample


@measures("exact_match")
def score(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    """1 for a response equal to the reference answer, white space at the ends aside, else 0.

    field: the record's field with the reference answer.

    Raises:
        KeyError: a record without that field.
    """
    return [
        float(sample.response.strip() == str(sample.record[field]).strip()) for sample in samples
    ]
