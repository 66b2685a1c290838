from __future__ import annotations

from decimal import Decimal

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


@pytest.mark.parametrize(
    ("answer", "response", "score"),
    [
        *((4.0, "4", 1), (4.5, "4.5", 1), (10**400, "1" + "0" * 400, 1)),
        *((["2", "two"], "two", 1), ([2.0], "2", 1), (["2", "two"], "['2', 'two']", 0)),
    ],
)
def test_an_answer_is_what_training_on_answers_would_write(
    answer: object, response: str, score: int
) -> None:
    assert exact_match.score([sample(response, answer)]) == [score]


@pytest.mark.parametrize("answer", ["", " ", [], [""], None, {"text": "4"}, float("nan")])
def test_saying_nothing_is_never_right(answer: object) -> None:
    for verifier in (exact_match.score, math.verify):
        with pytest.raises(ValueError, match="an answer is"):
            verifier([sample("", answer)])
    assert exact_match.score([sample("", ["7", ""])]) == [0]


def test_answers_are_decimals_and_messages_too() -> None:
    message = [{"role": "assistant", "content": "4.20"}]
    for answer in (Decimal("4.20"), message):
        assert exact_match.score([sample("4.20", answer)]) == [1]


def test_math_takes_any_answer_of_a_list() -> None:
    for answer in (2.0, ["3", "2"], ["so 1 + 1 = 2\n#### 2", 7]):
        assert math.verify([sample("The answer is 2.", answer)]) == [1]
        assert math.verify([sample("The answer is 4.", answer)]) == [0]


def test_references_stand_in_maps_under_dotted_names() -> None:
    nested = sample("2", {"style": "rule", "truth": "2"})
    for verifier in (exact_match.score, math.verify):
        assert verifier([nested], field="answer.truth") == [1]
        with pytest.raises(KeyError, match=r"answer\.other"):
            verifier([nested], field="answer.other")
        with pytest.raises(ValueError, match="type dict.*allowed a text, a number or a list"):
            verifier([nested])


def test_math_reads_references_of_gsm8k_and_math() -> None:
    for reference in ("so 40 + 2 = 42\n#### 42", r"hence $\boxed{42}$.", "42", 42):
        assert math.verify([sample("I think the answer is 42.", reference)]) == [1]
        assert math.verify([sample("I think the answer is 24.", reference)]) == [0]
    assert math.verify([sample(r"\boxed{7}")], field="solution") == [1]


def test_math_gives_nothing_for_a_response_without_answer() -> None:
    assert math.verify([sample(""), sample("no idea"), sample("####")]) == [0, 0, 0]


@pytest.mark.parametrize("reference", ["", "####", r"\boxed{"])
def test_math_refuses_a_reference_without_answer(reference: str) -> None:
    with pytest.raises(ValueError, match="no final answer|an answer is blank"):
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
