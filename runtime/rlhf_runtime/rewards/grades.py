"""Finds the grade in a judge's text."""

from __future__ import annotations

import re

# A number that neither a range, a decimal comma, a percentage nor an exponent continues.
_NUMBER = r"([-+]?(?:\d+(?:\.\d+)?|\.\d+))(?!\d|\.\d|,\d|%|e[-+]?\d|\s*[-\u2013\u2014]\s*\d)"
# The highest grade of the judge's scale: 7/10, 7 of 10, 7 (out of 10), 4 stars out of 5.
_HIGHEST = rf"(?:[\s*_`\])]*(?:\w+ )?\(?(?:/|out of\b|of\b)\s*{_NUMBER})?"
_QUOTES = r"[\s*_\"'`]*"
# `Score: 7`, `**Rating:** 7.5`, `the grade is 7`, `Score (0-10): 7`, `Rating: [[7]]`,
# `{"score": 7}`; not `maximum score: 10`.
_LABELLED = re.compile(
    r"(?<!maximum )(?<!highest )(?<!max )(?<!best )"
    rf"(?<![^\W_])(?:score|grade|rating){_QUOTES}(?:\([^()]*\))?{_QUOTES}(?:\bis\b|=|:)"
    rf"[\s*_\"'`\[(]*{_NUMBER}{_HIGHEST}",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"[\s*_`\[(]*{_NUMBER}{_HIGHEST}[\s*_`\]).]*", re.IGNORECASE)
# A numbered list follows the label: its first number is no grade.
_LIST = re.compile(r"\.[ \t]+\S")
_THOUGHT_END = "</think>"
_THOUGHT_BEGIN = re.compile(r"\s*<think>")


def find_grade(text: str, highest: float) -> float | None:
    """Return the last grade in a judge's text; None without one, or if it is of another scale.

    A grade is a number that is labelled as score, grade or rating, in prose or in JSON, or that
    stands alone. What the judge thinks does not count.

    Args:
        text: of the judge.
        highest: the highest grade.
    """
    # Chat templates may write the begin of the thought, so that only its end is in the answer.
    answer = text.rpartition(_THOUGHT_END)[2]
    if _THOUGHT_BEGIN.match(answer):
        return None  # it was cut off while it thought
    labelled = [match for match in _LABELLED.finditer(answer) if not _begins_list(answer, match)]
    match = labelled[-1] if labelled else _ALONE.fullmatch(answer)
    if match is None or (match[2] is not None and float(match[2]) != highest):
        return None
    return float(match[1])


def _begins_list(answer: str, match: re.Match[str]) -> bool:
    """True if the number is that of a list's item, at the beginning of a line."""
    before = answer[match.start() : match.start(1)]
    return "\n" in before and _LIST.match(answer, match.end(1)) is not None
