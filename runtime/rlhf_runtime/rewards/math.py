r"""Verifier: compares the final answer to a mathematical problem with the reference.

Understands the forms of GSM8K (`#### 42`) and MATH (`\boxed{...}`), and plain sentences that end in
an answer or a number. Numbers compare as exact fractions, everything else as normalized text. There
is no symbolic algebra: `x+1` and `1+x` are different.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.row_values import answer_texts, field_value

# Longer texts are no answers. Also bounds the time of a comparison.
MAX_ANSWER_CHARACTERS = 200

_NUMBER_IN_TEXT = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?|[-+]?\.\d+%?")
_ANSWER_PHRASE = re.compile(
    r"answer\s*(?:is|:|=)\s*(.+?)(?=\.\s|\.?$|[,;]\s+[a-z])", re.IGNORECASE | re.MULTILINE
)
_TEX_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_TEX_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_TEX_NOISE = re.compile(r"\\(?:left|right|displaystyle|quad|qquad|,|;|!|:)|\^\{?\\circ\}?")
_CURRENCY = re.compile(r"\\?[$€£]|\bdollars?\b")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_ASSIGNMENT = re.compile(r"[A-Za-z]\s*=\s*([^=]+)")
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>\d+) )?(?P<top>\d+(?:\.\d+)?|\.\d+)(?:/(?P<bottom>\d+))?"
    r"(?P<percent> ?(?:%|percent))?(?: (?!and\b|or\b|to\b)[a-z]{2,}(?:[ /.][a-z]+)*(?:\^?[23])?)?"
)


class Number(NamedTuple):
    """An exact number, and whether a percent sign followed it."""

    value: Fraction
    is_percent: bool


def verify(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    r"""Score 1 for a response whose final answer equals the reference, else 0.

    The reference may be a complete solution as in GSM8K (`... #### 42`) or MATH
    (`... \boxed{42}`), or the bare answer. Any answer of a list is right.

    field: the record's field with the reference answer; `a.b` is the entry `b` of the map `a`.

    Raises:
        KeyError: a record without that field.
        ValueError: a reference without a final answer.
    """
    return [_verify(sample, field) for sample in samples]


def _verify(sample: Sample, field: str) -> float:
    texts = answer_texts(field_value(sample.record, field))
    references = [_reference(text, field) for text in texts]
    answer = find_answer(sample.response)
    if answer is None:
        return 0.0
    return float(any(same_answer(answer, reference) for reference in references))


def _reference(text: str, field: str) -> str:
    """Return the reference's final answer; a text without a mark is the answer itself."""
    marked = "####" in text or "\\boxed{" in text or "\\fbox{" in text
    reference = find_answer(text) if marked else text.strip()
    if not reference:
        raise ValueError(
            f"the reference has no final answer: got {text[-80:]!r} in {field}, allowed `#### 42`, "
            "\\boxed{42} or the bare answer; correct the data or set another field"
        )
    return reference


def find_answer(solution: str) -> str | None:
    r"""Return the final answer of a solution, unchanged; None without one.

    In this order: the last `\boxed{}`, the line after the last `####`, the last `answer is ...`,
    the last number.
    """
    boxed = _last_boxed(solution)
    if boxed is not None:
        return boxed or None
    if "####" in solution:
        return solution.rsplit("####", 1)[1].strip().split("\n", 1)[0].strip() or None
    for candidates in (_ANSWER_PHRASE.findall(solution), _NUMBER_IN_TEXT.findall(solution)):
        if candidates:
            return str(candidates[-1]).strip().strip("*`").rstrip(",").strip()
    return None


def same_answer(left: str, right: str) -> bool:
    """True if two answers are equal: as numbers if both are numbers, else as normalized text.

    If only one of them is a percentage, 20% equals 20 and 0.2.
    """
    if max(len(left), len(right)) > MAX_ANSWER_CHARACTERS:
        return False
    left_number, right_number = as_number(left), as_number(right)
    if left_number is None or right_number is None:
        return normalize_answer(left) == normalize_answer(right)
    if left_number.value == right_number.value:
        return True
    if left_number.is_percent == right_number.is_percent:
        return False
    ratio = 100 if left_number.is_percent else Fraction(1, 100)
    return left_number.value == ratio * right_number.value


def as_number(answer: str) -> Number | None:
    """Parse an answer as an exact number; None if it is no number.

    Understands signs, thousands separators, decimals, fractions, mixed numbers, percent, currency
    signs, and a unit after the number, which is dropped.
    """
    match = _NUMBER.fullmatch(normalize_answer(answer))
    if match is None or (match["whole"] and not match["bottom"]):
        return None
    # Exact: 1/3 and 0.1 + 0.2 have no exact float.
    bottom = int(match["bottom"] or 1)
    if bottom == 0:
        return None
    value = int(match["whole"] or 0) + Fraction(match["top"]) / bottom
    return Number(-value if match["sign"] == "-" else value, match["percent"] is not None)


def normalize_answer(answer: str) -> str:
    """Remove mark-up, capitals, and spaces other than those between words."""
    text = answer.replace("\\%", "%").replace("−", "-").strip("*`")
    for pattern, by in ((_TEX_TEXT, r" \1 "), (_TEX_NOISE, ""), (_CURRENCY, "")):
        text = pattern.sub(by, text)
    text = re.sub(r"(?<=\d)\s*(?=\\[dt]?frac)", " ", text)
    # Repeated, so that nested fractions are resolved from the inside.
    previous = ""
    while previous != text:
        previous, text = text, _TEX_FRACTION.sub(_plain_fraction, text)
    text = _THOUSANDS.sub("", text).replace("\\cdot", "*").replace("\\times", "*").strip()
    assignment = _ASSIGNMENT.fullmatch(text)  # "x = 5" means 5
    text = (assignment[1] if assignment else text).strip().rstrip(".").lower()
    return re.sub(r"(?<!\w) | (?!\w)", "", re.sub(r"\s+", " ", text))


def _plain_fraction(match: re.Match[str]) -> str:
    top, bottom = (match[1] or match[2] or "").strip(), (match[3] or match[4] or "").strip()
    simple = re.compile(r"-?\w+(?:\.\d+)?")
    return "/".join(part if simple.fullmatch(part) else f"({part})" for part in (top, bottom))


def _last_boxed(solution: str) -> str | None:
    """Return the contents of the last boxed expression, inner braces included."""
    start = max(solution.rfind("\\boxed{"), solution.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = solution.index("{", start) + 1
    depth = 1
    for index in range(begin, len(solution)):
        if solution[index] in "{}":
            depth += 1 if solution[index] == "{" else -1
        if depth == 0:
            return solution[begin:index].strip()
    return None
