r"""Verifier: compares the final answer to a mathematical problem with the reference.

Finds answers in the forms of MATH (`\boxed{...}`), GSM8K (`#### 42`), LaTeX between `$`, and
sentences with a number or a choice. math-verify compares numbers, expressions, sets, intervals and
equations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Imported with this module, so that its time is the start's and not a batch's.
from math_verify import (
    ExprExtractionConfig,
    LatexExtractionConfig,
    StringExtractionConfig,
    parse,
)
from math_verify import verify as is_equal

from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.row_values import answer_texts, field_value

# For parsing a text, and for each comparison. A verifier runs in its process's main thread, which
# math-verify needs for its alarms.
MAX_SECONDS = 1
_MATH = (LatexExtractionConfig(), ExprExtractionConfig())
_LETTERS = "ABCDEFGHIJ"
# Without an anchor such as "the answer is", the article A would be an answer.
_CHOICES = (
    StringExtractionConfig(strings=tuple(_LETTERS), try_extract_without_anchor=False),
    LatexExtractionConfig(),
)
# A number before words, or at the end.
_NUMBER = re.compile(r"\$?\s*\+?(-?\d[\d,.]*(?:/\d+)?\s*%?)(?=\s+[A-Za-z]{2}|\s*[(<]|\s*$)")
_MIXED_NUMBER = re.compile(r"\b(\d+) (\d+)/(\d+)\b")
_JOINED = re.compile(r"\b(?:and|or|to)\b")
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2}")
_CALCULATION = re.compile(r"\d\s*(?:[-+*×·]|\\times|\\cdot)\s*\d")
# Around a number in a text without LaTeX; math-verify wants spaces there.
_SPACES = str.maketrans({**dict.fromkeys("`\"'()[]{}<>", " "), ":": ": "})
_BOX = "\\boxed{"


def verify(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    r"""Score 1 for a response whose final answer equals the reference, else 0.

    The reference may be a complete solution as in GSM8K (`... #### 42`) or MATH
    (`... \boxed{42}`), or the bare answer, in LaTeX or not. Any answer of a list is right. A
    response that takes too long to parse or to compare scores 0.

    field: the record's field with the reference answer; `a.b` is the entry `b` of the map `a`.

    Raises:
        KeyError: a record without that field.
        ValueError: a reference without a final answer.
    """
    return [_verify(sample, field) for sample in samples]


def _verify(sample: Sample, field: str) -> float:
    texts = answer_texts(field_value(sample.record, field))
    return float(any(_is_answer(sample.response, text, field) for text in texts))


def _is_answer(response: str, reference: str, field: str) -> bool:
    text = _plain(response)
    letter = reference.strip().strip("()")
    if len(letter) == 1 and letter in _LETTERS:
        references = [letter.lower(), *parse(f"${letter}$", _MATH, parsing_timeout=MAX_SECONDS)]
        return text.strip(" *.()\n") == letter or _equal(references, text, _CHOICES)
    return _equal(_parsed_reference(reference, field), _final_part(text), _MATH)


def _equal(reference: list[Any], text: str, forms: Sequence[Any]) -> bool:
    if "\\" not in text and "$" not in text:
        text = text.translate(_SPACES)
    answer = parse(text, forms, parsing_timeout=MAX_SECONDS)
    return _is_worked_out(reference, answer) and bool(
        is_equal(reference, answer, timeout_seconds=MAX_SECONDS)
    )


def _is_worked_out(reference: Sequence[Any], answer: Sequence[Any]) -> bool:
    """False if the answer is a calculation where the reference is a number."""
    # Else the question itself would be a right answer to `40+2`. The last entry is the text.
    is_number = getattr(reference[0], "is_Number", False)
    return not answer or not (is_number and _CALCULATION.search(str(answer[-1]).rpartition("=")[2]))


# The samples of a prompt share a reference.
@lru_cache(maxsize=1024)
def _parsed_reference(text: str, field: str) -> list[Any]:
    parsed: list[Any] = parse(_final_reference(_plain(text)), _MATH, parsing_timeout=MAX_SECONDS)
    if not parsed:
        raise ValueError(
            f"the reference has no final answer: got {text[-80:]!r} in {field}, allowed `#### 42`, "
            "\\boxed{42} or the bare answer; correct the data or set another field"
        )
    return parsed


def _plain(text: str) -> str:
    """Replace what math-verify does not read: typographic minus, money, framed boxes, 1 1/2."""
    text = text.replace("−", "-").replace("\\$", "").replace("\\fbox{", _BOX)
    return _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", text)


def _final_reference(text: str) -> str:
    """Return the part of a reference that has the answer; a bare one is delimited."""
    if _BOX in text or "####" in text:
        return _final_part(text)
    number = None if _JOINED.search(text) else _NUMBER.match(text.strip())
    return number[1] if number else _delimited(text)


def _final_part(text: str) -> str:
    """Return the text from its last box on, else after its last `####`, else all."""
    # math-verify makes a set of all boxes, and does not know `####`.
    if _BOX in text:
        return text[text.rindex(_BOX) :]
    if "####" not in text:
        return text
    line = text.rpartition("####")[2].strip().partition("\n")[0]
    if number := _NUMBER.match(line):
        return number[1]
    # A sentence stays one.
    return line if _WORD.search(line) and "\\" not in line else _delimited(line)


def _delimited(text: str) -> str:
    return text if "$" in text or not text.strip() else f"${text.strip()}$"
