r"""Verifier: does the response reach the reference answer of a mathematical problem?"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.rewards.final_answer import find_answer, same_answer
from rlhf_runtime.rewards.sample import Sample


def verify(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    r"""1 for a response whose final answer equals the reference, else 0.

    Both are searched for their final answer, so the reference may be a whole solution as in GSM8K
    (`... #### 42`) or MATH (`... \boxed{42}`), or the bare answer.

    field: the record's field with the reference answer.

    Raises:
        KeyError: a record without that field.
        ValueError: a reference without an answer: it could never be matched.
    """
    return [_verify(sample, field) for sample in samples]


def _verify(sample: Sample, field: str) -> float:
    reference = _reference(str(sample.record[field]), field)
    answer = find_answer(sample.response)
    return float(answer is not None and same_answer(answer, reference))


def _reference(text: str, field: str) -> str:
    """The reference's final answer; a short text without any mark is the answer itself."""
    marked = "####" in text or "\\boxed{" in text or "\\fbox{" in text
    reference = find_answer(text) if marked else text.strip()
    if not reference:
        raise ValueError(
            f"the reference has no final answer: got {text[-80:]!r} in {field}, allowed `#### 42`, "
            "\\boxed{42} or the bare answer; correct the data or set another field"
        )
    return reference
