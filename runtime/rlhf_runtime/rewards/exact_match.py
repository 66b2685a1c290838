"""Verifier: compares the response with the reference answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_runtime.rewards.sample import Sample, measures
from rlhf_runtime.row_values import answer_texts, field_value


@measures("exact_match")
def score(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    """Score 1 for a response equal to the reference answer, else 0.

    White space at the ends does not count. Any answer of a list is right.

    field: the record's field with the reference answer; `a.b` is the entry `b` of the map `a`.

    Raises:
        KeyError: a record without that field.
        ValueError: a reference that is no text, no number and no list of these.
    """
    return [_score(sample.response.strip(), sample.record, field) for sample in samples]


def _score(response: str, record: Mapping[str, Any], field: str) -> float:
    references = answer_texts(field_value(record, field))
    return float(response in [reference.strip() for reference in references])
