from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.rewards.math import as_number, find_answer, normalize_answer, same_answer


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}. So 7", r"\frac{1}{2}"),
        ("5 + 5 = 10\n#### 1,200\n", "1,200"),
        ("wait #### 3 no #### 4", "4"),
        ("5 + 5 = 10. The answer is 42.", "42"),
        ("The answer is $42.50.", "$42.50"),
        ("Answer: **12**", "12"),
        ("The answer is 42, because 6 * 7.", "42"),
        ("The answer is 3. No, the answer is 4.", "4"),
        ("we get 3, then 17 apples.", "17"),
        ("that is 10%.", "10%"),
        ("it is -2.5 degrees", "-2.5"),
        ("no number at all", None),
        (r"\boxed{}", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_final_answer_is_found(solution: str, answer: str | None) -> None:
    assert find_answer(solution) == answer


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("42", "42.0"),
        ("1,234,567", "1234567"),
        ("$1,000", "1000"),
        (r"\$5.50", "5.5"),
        ("12 dollars", "12"),
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac12", "1/2"),
        (r"-\frac{1}{2}", "-0.5"),
        (r"1\frac{1}{2}", "3/2"),
        ("1 1/2", "1.5"),
        ("-1 1/2", "-1.5"),
        (".5", "0.5"),
        ("+5", "5"),
        ("−3", "-3"),
        ("18.", "18"),
        ("20%", "20"),
        ("20%", "0.2"),
        (r"20\%", "20%"),
        ("5 percent", "5%"),
        ("5 apples", "5"),
        (r"10\text{ cm}^2", "10"),
        ("7 miles/hour", "7"),
        (r"90^\circ", "90"),
        ("x = 5", "5"),
        (r"\text{(B)}", "(b)"),
        ("(1, 2)", "(1,2)"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("x + 1", "x+1"),
        (r"\frac{\sqrt{3}}{2}", r"\frac{ \sqrt{3} }{2}"),
        (r"2 \cdot x", "2*x"),
        ("**yes**", "Yes"),
    ],
)
def test_answers_that_say_the_same_are_equal(left: str, right: str) -> None:
    assert same_answer(left, right)
    assert same_answer(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("3", "-3"),
        ("5x", "5"),
        ("5 and 6", "5"),
        ("1,2", "12"),
        ("11/2", "1 1/2"),
        ("20%", "0.2%"),
        ("0.2%", "20"),
        ("x+1", "1+x"),
        ("1/0", "0"),
        ("3.14", "3.1416"),
        ("", "0"),
        ("9" * 300, "9" * 300),
    ],
)
def test_answers_that_differ_are_not_equal(left: str, right: str) -> None:
    assert not same_answer(left, right)
    assert not same_answer(right, left)


@given(st.fractions(max_denominator=999))
def test_fractions_are_read_exactly(value: Fraction) -> None:
    for text in (str(value), rf"\frac{{{value.numerator}}}{{{value.denominator}}}"):
        number = as_number(text)
        assert number is not None
        assert number.value == value


@given(st.text(max_size=300))
def test_no_text_makes_it_raise(text: str) -> None:
    answer = find_answer(text)
    normalize_answer(text)
    assert same_answer(text, text) in (True, False)
    assert answer is None or isinstance(answer, str)


@pytest.mark.parametrize(
    "text", ["answer is " * 2000, r"\frac{" * 3000, "1," * 8000, r"\boxed{" * 3000, " " * 16000]
)
def test_long_nonsense_takes_no_time(text: str) -> None:
    find_answer(text)
    assert not same_answer(text, "1")
