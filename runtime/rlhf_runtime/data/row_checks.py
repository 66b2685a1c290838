"""Texts of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MAX_ENTRIES = 8
"""Entries of a map that a message names."""
_MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*['"](role|content|from|value)['"]\s*:""")


class RowProblem(Exception):
    """The row is unusable; the text continues `row N: `."""


def checked_text(value: Any, field: str) -> str:
    """Return a text that is not blank and valid Unicode.

    Raises:
        RowProblem: the value is no such text.
    """
    if not isinstance(value, str) or not value.strip() or not is_unicode(value):
        raise RowProblem(f"{field} is {describe(value)}")
    return value


def checked_prompt(value: Any, field: str) -> str:
    """Return the text of a prompt.

    Raises:
        RowProblem: the value is no text, or one that holds a list of messages.
    """
    text = checked_text(value, field)
    # Tables often store messages in this way. As a text they would be trained on, braces and all.
    if _MESSAGES_AS_TEXT.match(text):
        raise RowProblem(
            f"{field} is a text that holds a list of messages; allowed the list itself: parse the "
            "text in your data, by json.loads if it is JSON"
        )
    return text


def describe(value: Any) -> str:
    """Describe a value's kind."""
    if value is None:
        return "null or missing"
    if isinstance(value, str):
        if not value.strip():
            return "an empty text"
        return "a text" if is_unicode(value) else "not valid Unicode"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, Mapping):
        entries = ", ".join(str(name) for name in list(value)[:MAX_ENTRIES]) or "none"
        return f"a map; name one of its entries behind a dot: {entries}"
    return f"of type {type(value).__name__}"


def is_unicode(text: str) -> bool:
    """True if a text can be encoded."""
    # JSON escapes can produce unpaired surrogates.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
