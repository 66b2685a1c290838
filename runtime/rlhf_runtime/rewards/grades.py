"""Finds the grade in a judge's text."""

from __future__ import annotations

import re

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?![\d.]*\d)"
# Of another scale if it is not the highest grade: 7/10, 7 out of 10.
_HIGHEST = rf"(?:[\s*_`\])]*(?:/|out of)\s*({_NUMBER}))?"
# What a judge thought is no answer.
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
# `Score: 7`, `**Rating:** 7.5`, `the grade is 7`, `Rating: [[7]]`, `{"score": 7}`.
_LABELLED = re.compile(
    r"\b(?:score|grade|rating)\b"
    rf"[\s*_\"'`]*(?:is|=|:)?[\s*_\"'`\[(]*({_NUMBER}){_HIGHEST}",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"[\s*_`\[(]*({_NUMBER}){_HIGHEST}[\s*_`\]).]*")


def find_grade(text: str, highest: float) -> float | None:
    """Return the last grade in a judge's text; None without one, or if it is of another scale.

    A grade is a number that is labelled as score, grade or rating, in prose or in JSON, or that
    stands alone.

    Args:
        text: of the judge.
        highest: the highest grade.
    """
    answer = _THOUGHT.sub("", text)
    *_, last = [None, *_LABELLED.finditer(answer)]
    found = last or _ALONE.fullmatch(answer)
    if found is None or (found[2] is not None and float(found[2]) != highest):
        return None
    return float(found[1])
