r"""Verifier: compares the final answer to a mathematical problem with the reference.

Finds answers in the forms of MATH (`\boxed{...}`), GSM8K (`#### 42`), LaTeX between `$`, and
sentences with a number or a choice. math-verify compares numbers, expressions, sets, intervals and
equations.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

# Imported with this module, so that its time is the start's and not a batch's.
from math_verify import (
    ExprExtractionConfig,
    LatexExtractionConfig,
    StringExtractionConfig,
    parse,
)
from math_verify import verify as is_equal
from math_verify.errors import TimeoutException

from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.written_numbers import is_calculation, is_number
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
_MIXED_NUMBER = re.compile(r"\b(\d{1,9}) (\d{1,9})/(\d{1,9})\b")
_JOINED = re.compile(r"\b(?:and|or|to)\b")
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2}")
# Around a number in a text without LaTeX; math-verify wants spaces there.
_SPACES = str.maketrans({**dict.fromkeys("`\"'()[]{}<>", " "), ":": ": "})
_BOX = "\\boxed{"
MAX_LOG_CHARACTERS = 200


def verify(samples: Sequence[Sample], *, field: str = "answer") -> list[float]:
    r"""Score 1 for a response whose final answer equals the reference, else 0.

    The reference may be a complete solution as in GSM8K (`... #### 42`) or MATH
    (`... \boxed{42}`), or the bare answer, in LaTeX or not. Any answer of a list is right. A
    response that takes too long to parse or to compare scores 0.

    field: the record's field with the reference answer; `a.b` is the entry `b` of the map `a`.

    Raises:
        KeyError: a record without that field.
        TimeoutError: a reference that takes longer than MAX_SECONDS to parse.
        ValueError: a reference without a final answer.
    """
    # It logs the whole text when parsing takes too long. A filter that is there is not added again.
    logging.getLogger("math_verify.parser").addFilter(_shorten)
    return [_verify(sample, field) for sample in samples]


def _verify(sample: Sample, field: str) -> float:
    response = _Response(sample.response)
    texts = answer_texts(field_value(sample.record, field))
    return float(any(_is_answer(response, text, field) for text in texts))


class _Response:
    """A response, parsed once for all references."""

    def __init__(self, text: str) -> None:
        self.text = _plain(text)

    @cached_property
    def choice(self) -> list[Any]:
        return _parsed(self.text, _CHOICES)

    @cached_property
    def expression(self) -> list[Any]:
        return _parsed(_final_part(self.text), _MATH)


def _parsed(text: str, forms: Sequence[Any]) -> list[Any]:
    if "\\" not in text and "$" not in text:
        text = text.translate(_SPACES)
    answer: list[Any] = parse(text, forms, parsing_timeout=MAX_SECONDS)
    return answer


def _is_answer(response: _Response, reference: str, field: str) -> bool:
    letter = reference.strip().strip("()")
    if len(letter) == 1 and letter in _LETTERS:
        references = [letter.lower(), *parse(f"${letter}$", _MATH, parsing_timeout=MAX_SECONDS)]
        return response.text.strip(" *.()\n") == letter or _equal(references, response.choice)
    expected = _parsed_reference(reference, field)
    return _is_worked_out(expected, response.expression) and _equal(expected, response.expression)


def _equal(reference: list[Any], answer: list[Any]) -> bool:
    return bool(is_equal(reference, answer, timeout_seconds=MAX_SECONDS))


def _is_worked_out(reference: Sequence[Any], answer: Sequence[Any]) -> bool:
    """False if the answer is a calculation where the reference is a number."""
    # Else the question itself would be a right answer to `40+2`.
    return not (answer and is_number(reference) and is_calculation(answer))


# The samples of a prompt share a reference.
@lru_cache(maxsize=1024)
def _parsed_reference(text: str, field: str) -> list[Any]:
    parsed: list[Any] = []
    answer = _final_reference(_plain(text))
    try:
        parsed = parse(answer, _MATH, parsing_timeout=MAX_SECONDS, raise_on_error=True)
    # No Exception, but a BaseException.
    except TimeoutException:
        raise TimeoutError(
            f"the reference takes too long to parse: got {text[-80:]!r} in {field}, allowed "
            f"{MAX_SECONDS} s; write it in a simpler form, or give the machine less other work"
        ) from None
    except Exception:
        pass  # as without an answer
    if not parsed:
        raise ValueError(
            f"the reference has no final answer: got {text[-80:]!r} in {field}, allowed `#### 42`, "
            "\\boxed{42} or the bare answer; correct the data or set another field"
        )
    return parsed


def _plain(text: str) -> str:
    """Replace what math-verify does not read: typographic minus, money, framed boxes, 1 1/2."""
    text = text.replace("−", "-").replace("\\$", "").replace("\\fbox{", _BOX)
    return _MIXED_NUMBER.sub(_improper_fraction, text)


def _improper_fraction(mixed: re.Match[str]) -> str:
    whole, numerator, denominator = map(int, mixed.groups())
    return f"{whole * denominator + numerator}/{denominator}"


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


def _shorten(record: logging.LogRecord) -> bool:
    """Shorten the message of a log record."""
    message = record.getMessage()
    if len(message) > MAX_LOG_CHARACTERS:
        record.msg, record.args = f"{message[:MAX_LOG_CHARACTERS]} ...", ()
    return True
