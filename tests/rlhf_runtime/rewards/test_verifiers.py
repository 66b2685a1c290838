from __future__ import annotations

import pytest

from rlhf_runtime.rewards import Sample, exact_match, length, math


def sample(response: str, answer: object = "42", finished: bool = True) -> Sample:
    return Sample("question", response, {"answer": answer, "solution": "#### 7"}, finished)


def test_exact_match_wants_the_whole_answer() -> None:
    responses = ["42", " 42\n", "4 2", "042", ""]
    assert exact_match.score([sample(text) for text in responses]) == [1, 1, 0, 0, 0]


def test_exact_match_compares_numbers_as_text_and_reads_other_fields() -> None:
    assert exact_match.score([sample("42", answer=42)]) == [1]
    assert exact_match.score([sample("#### 7")], field="solution") == [1]
    with pytest.raises(KeyError, match="target"):
        exact_match.score([sample("1")], field="target")


def test_math_reads_references_of_gsm8k_and_math() -> None:
    for reference in ("so 40 + 2 = 42\n#### 42", r"hence $\boxed{42}$.", "42", 42):
        assert math.verify([sample("I think the answer is 42.", reference)]) == [1]
        assert math.verify([sample("I think the answer is 24.", reference)]) == [0]
    assert math.verify([sample(r"\boxed{7}")], field="solution") == [1]


def test_math_gives_nothing_for_a_response_without_answer() -> None:
    assert math.verify([sample(""), sample("no idea"), sample("####")]) == [0, 0, 0]


@pytest.mark.parametrize("reference", ["", "####", r"\boxed{"])
def test_math_refuses_a_reference_without_answer(reference: str) -> None:
    with pytest.raises(ValueError, match="no final answer"):
        math.verify([sample("42", reference)])


def test_length_falls_linearly_between_its_limits() -> None:
    texts = ["a" * count for count in (0, 10, 15, 20, 99)]
    assert length.penalty([sample(text) for text in texts], free=10, limit=20) == [
        0,
        0,
        -0.5,
        -1,
        -1,
    ]
    assert length.penalty([sample("a", finished=False)], free=10, limit=20) == [-1]
    with pytest.raises(ValueError, match="limit is not above free"):
        length.penalty([], free=5, limit=5)
