r"""Find the final answer in a solution and compare it with another.

Understands what GSM8K (`#### 42`) and MATH (`\boxed{...}`) use, and plain sentences that end in an
answer or a number. Numbers compare as exact fractions; everything else as text without LaTeX's ways
of saying the same thing. There is no symbolic algebra: `x+1` and `1+x` are different.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

LONGEST_ANSWER = 200
"""Characters; a longer text is no answer. It also bounds the time that a comparison can take."""

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
    """An exact number, and whether it stood before a percent sign."""

    value: Fraction
    is_percent: bool


def find_answer(solution: str) -> str | None:
    r"""The final answer of a solution, as it stands there; None where there is none.

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
    """Whether two answers say the same: as numbers if both are, else as text in one form.

    Where only one of them is a percentage, 20% is read as 20 and as 0.2.
    """
    if max(len(left), len(right)) > LONGEST_ANSWER:
        return False
    left_number, right_number = as_number(left), as_number(right)
    if left_number is None or right_number is None:
        return canonical(left) == canonical(right)
    if left_number.value == right_number.value:
        return True
    if left_number.is_percent == right_number.is_percent:
        return False
    ratio = 100 if left_number.is_percent else Fraction(1, 100)
    return left_number.value == ratio * right_number.value


def as_number(answer: str) -> Number | None:
    """The answer as an exact number; None if it is none.

    Understands signs, thousands separators, decimals, fractions, mixed numbers, percent, currency
    signs, and a unit behind the number, which is dropped.
    """
    match = _NUMBER.fullmatch(canonical(answer))
    if match is None or (match["whole"] and not match["bottom"]):
        return None
    bottom = int(match["bottom"] or 1)
    if bottom == 0:
        return None
    value = int(match["whole"] or 0) + Fraction(match["top"]) / bottom
    return Number(-value if match["sign"] == "-" else value, match["percent"] is not None)


def canonical(answer: str) -> str:
    """The answer without mark-up, capitals, and spaces other than those between words."""
    text = answer.replace("\\%", "%").replace("−", "-").strip("*`")
    for pattern, by in ((_TEX_TEXT, r" \1 "), (_TEX_NOISE, ""), (_CURRENCY, "")):
        text = pattern.sub(by, text)
    text = re.sub(r"(?<=\d)\s*(?=\\[dt]?frac)", " ", text)
    previous = ""
    while previous != text:
        previous, text = text, _TEX_FRACTION.sub(_plain_fraction, text)
    text = _THOUSANDS.sub("", text).replace("\\cdot", "*").replace("\\times", "*").strip()
    assignment = _ASSIGNMENT.fullmatch(text)  # x = 5 says 5
    text = (assignment[1] if assignment else text).strip().rstrip(".").lower()
    return re.sub(r"(?<!\w) | (?!\w)", "", re.sub(r"\s+", " ", text))


def _plain_fraction(match: re.Match[str]) -> str:
    top, bottom = (match[1] or match[2] or "").strip(), (match[3] or match[4] or "").strip()
    simple = re.compile(r"-?\w+(?:\.\d+)?")
    return "/".join(part if simple.fullmatch(part) else f"({part})" for part in (top, bottom))


def _last_boxed(solution: str) -> str | None:
    """Contents of the last boxed expression, braces inside it included."""
    start = max(solution.rfind("\\boxed{"), solution.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = solution.index("{", start) + 1
    depth = 1
    for place in range(begin, len(solution)):
        if solution[place] in "{}":
            depth += 1 if solution[place] == "{" else -1
        if depth == 0:
            return solution[begin:place].strip()
    return None
