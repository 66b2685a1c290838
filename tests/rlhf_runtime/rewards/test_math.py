from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parser
from math_verify.errors import TimeoutException

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample, math
from rlhf_runtime.rewards.math import verify
from rlhf_runtime.rewards.pool import VerifierPool

from ...depth import examples

SECONDS = 60


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """A busy machine may stand still for the second that a verifier has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math, "MAX_SECONDS", SECONDS)
        yield


def score(response: str, reference: str) -> float:
    (value,) = verify([Sample("question", response, {"answer": reference}, True)])
    return value


@pytest.mark.parametrize(
    "response",
    [
        "The answer is: 42",
        "The final answer is: 42.",
        "The answer is: **42**",
        "So the answer is 42 (forty-two)",
        "The final answer is 42 because 40+2=42",
        "The answer is approximately 42",
        "The answer is 42, not 41",
        "The answer is 3. No, the answer is 42.",
        "She pays $50 and gets $8, so the answer is $42.",
        "40 + 2 = 42",
        "we get 3, then 42 apples.",
        "**Answer:** 42",
        "Answer:42",
        "`42`",
        "(42)",
        "x = 42",
        r"\boxed{42\text{ cm}}",
        r"first \boxed{1}, then \boxed{42}. So 7",
        r"$40 + 2 = 42$",
        r"\boxed{\frac{42}{1}}",
        "#### 42.",
        "#### $42",
        "#### 42</s>",
        "#### 42.00",
        "#### 42 dollars",
        "#### The answer is 42",
        "#### 42 and the reasoning above confirms it",
        "#### 42 because 6 * 7 = 43",
        "wait #### 3 no #### 42\nNote: 7",
    ],
)
def test_an_answer_is_found_in_its_sentence(response: str) -> None:
    for reference in ("42", "40 + 2 = 42\n#### 42", r"hence $\boxed{42}$.", "42.0", "42 apples"):
        assert score(response, reference) == 1, reference
    assert score(response, "43") == 0


@pytest.mark.parametrize(
    "response",
    [
        "The answer is 41",
        "no number at all",
        "",
        "####",
        # The last box counts, also an empty one.
        r"\boxed{42}. Check: \boxed{}",
        # A calculation is no answer: the question itself would be right.
        "40 + 2",
        "40+2=",
        r"\boxed{40+2}",
        r"\boxed{6 \cdot 7}",
        "40 - -2",
        "84/2",
        "84 / 2",
        "42 = 40+2",
        r"\boxed{40 - -2}",
        r"\boxed{(40)+2}",
        r"\boxed{{40}+{2}}",
        r"\boxed{x=40+2}",
        r"\boxed{42 \pm 0}",
        r"\boxed{84 \div 2}",
        r"\boxed{84 : 2}",
        r"\boxed{\frac{84}{2}}",
        r"\boxed{\frac{168}{2^2}}",
        r"\boxed{\frac{1}{2} \cdot 84}",
        r"\boxed{-1 \cdot -42}",
        r"\boxed{\sum_{i=1}^{42} 1}",
        r"$\int_0^{42} 1 dx$",
        r"\boxed{\lim_{x\to 0} 42}",
        r"\boxed{\gcd(84, 42)}",
        r"\boxed{\binom{42}{1}}",
        r"\boxed{|-42|}",
        r"\boxed{e^{\ln 42}}",
        r"\boxed{-42}",
        r"\boxed{41, 42}",
        r"\boxed{42x}",
    ],
)
def test_anything_else_scores_nothing(response: str) -> None:
    assert score(response, "42") == 0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1,234,567", "1234567"),
        ("$1,000", "1000"),
        (r"\$5.50", "5.5"),
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac12", "1/2"),
        ("1 1/2", "1.5"),
        ("-1 1/2", "-1.5"),
        ("2/4", "1/2"),
        (r"\frac{1}{2^{10}}", r"\frac{1}{1024}"),
        (r"\sqrt[3]{27}", "3"),
        ("-10^3", "-1000"),
        (r"1.5 \times 10^3", "1500"),
        (r"-20\%", "-0.2"),
        (r"\frac{2}{\sqrt{2}}", r"\sqrt{2}"),
        (r"2\sqrt{2}", r"\sqrt{8}"),
        ("-1+2^{10}", "2^{10}-1"),
        ("40+2", "2+40"),
        (".5", "0.5"),
        ("+5", "5"),
        ("−3", "-3"),
        ("20%", "20"),
        ("20%", "0.2"),
        (r"20\%", "20%"),
        ("10^3", "1000"),
        (r"90^\circ", "90"),
        ("x = 5", "5"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("x+1", "1 + x"),
        ("3-2x", "-2x+3"),
        (r"\frac{\sqrt{3}}{2}", r"\frac{ \sqrt{3} }{2}"),
        ("2, 3", r"\{3, 2\}"),
        ("3+4i", "4i + 3"),
        (r"\text{Tuesday}", r"\text{tuesday}"),
    ],
)
def test_answers_that_say_the_same_are_equal(left: str, right: str) -> None:
    for one, other in ((left, right), (right, left)):
        assert score(rf"so \boxed{{{one}}}.", other) == 1
        assert score(f"#### {one}", f"#### {other}") == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("5x", "5"),
        ("1,2", "12"),
        ("11/2", "1 1/2"),
        ("20%", "0.2%"),
        ("3.14", "3.1416"),
    ],
)
def test_answers_that_differ_are_not_equal(left: str, right: str) -> None:
    assert score(rf"\boxed{{{left}}}", right) == score(rf"\boxed{{{right}}}", left) == 0


@pytest.mark.parametrize(
    ("calculation", "reference"),
    [("1 - 1/2", "1/2"), (r"10 \cdot 100", "10^3"), ("10% + 10%", r"20\%"), ("6!", "720")],
)
def test_no_calculation_is_an_answer_to_any_form_of_a_number(
    calculation: str, reference: str
) -> None:
    assert score(rf"\boxed{{{calculation}}}", reference) == 0
    assert score(rf"\boxed{{{reference}}}", reference) == 1


@pytest.mark.parametrize("response", ["The answer is 1 1/2.", "so 1 1/2 cups", "It is $1 1/2$"])
def test_mixed_numbers_are_read_in_sentences(response: str) -> None:
    assert score(response, "1.5") == score(response, r"1\frac12") == 1
    assert score(response, "5.5") == score(response, "1") == 0


@pytest.mark.parametrize("reference", ["A", "(A)"])
def test_choices_are_letters_with_or_without_brackets(reference: str) -> None:
    right = [
        "A",
        "(A)",
        r"\boxed{(A)}",
        r"\boxed{\text{(A)}}",
        "Final answer: (A)",
        "The answer is A.",
    ]
    wrong = ["B", r"\boxed{B}", "The answer is B, not A", "A cat has four legs", ""]
    assert [score(response, reference) for response in right] == [1] * 6
    assert [score(response, reference) for response in wrong] == [0] * 5


@settings(max_examples=examples(30))
@given(st.fractions(max_denominator=999))
def test_fractions_are_read_exactly(value: Fraction) -> None:
    text = rf"\boxed{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"
    assert score(text, str(value)) == 1
    assert score(text, str(value + Fraction(1, 1000))) == 0


@settings(max_examples=examples(30))
@given(st.text(max_size=100))
def test_no_response_makes_it_raise(text: str) -> None:
    assert score(text, "42") in (0, 1)


@pytest.mark.parametrize(
    "text", ["answer is " * 2000, r"\frac{" * 3000, "1," * 8000, r"\boxed{" * 3000, " " * 16000]
)
def test_long_nonsense_scores_nothing(text: str) -> None:
    assert score(text, "1") == 0


def time_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let math-verify's time for a text be over at once; returns the texts that it gets."""
    texts: list[str] = []

    def raise_time_out(text: str, *_: object, **__: object) -> NoReturn:
        texts.append(text)
        raise TimeoutException

    monkeypatch.setattr(parser, "extract_target_from_pred", raise_time_out)
    return texts


def test_a_response_that_takes_too_long_is_parsed_once_and_logged_briefly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sample = Sample("question", "1 " * 300, {"answer": ["10001", "10002", "10003"]}, True)
    assert verify([sample]) == [0], "and the references are parsed"
    texts = time_out(monkeypatch)
    assert verify([sample]) == [0] and texts == [sample.response]
    (message,) = caplog.messages
    assert message.startswith("Timeout during parsing") and len(message) < 300


def test_a_reference_that_takes_too_long_to_parse_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time_out(monkeypatch)
    says = f"too long to parse: got '10004' in answer, allowed {SECONDS} s"
    with pytest.raises(TimeoutError, match=says):
        score("1", "10004")


def test_an_answer_that_never_ends_costs_its_own_score_only_in_a_verifiers_process(
    reward: Callable[..., RewardSpec], samples: Callable[..., list[Sample]]
) -> None:
    """math-verify's alarms reach a process's main thread, before its batch's time is over."""
    spec = reward("rlhf_runtime.rewards.math:verify", timeoutSeconds=20)
    with VerifierPool(spec) as pool:
        scores = pool.score(samples(r"\boxed{42}", r"\boxed{9^{9^{9^{9}}}}", "42", answer="42"))
    assert scores.values.tolist() == [1, 0, 1]
    assert scores.valid.all() and scores.rescored == 0
