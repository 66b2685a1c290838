"""Long texts without their middle: the begin, the number of characters left out, and the end."""

from __future__ import annotations

import re

_LEFT_OUT = re.compile(r" \[\.\.\. ([0-9]{1,18}) characters \.\.\.\] ")


def shorten(text: str, limit: int) -> str:
    """Return a text of about `limit` characters: its begin and its end, where most answers are."""
    return text if len(text) <= limit else _without_middle(text, len(text), text, limit)


def shorten_further(text: str, limit: int) -> str:
    """Return a text of about `limit` characters; `text` may be a result of `shorten`.

    The number in it is that of the characters left out of the original text.
    """
    mark = next(filter(_is_in_place, _LEFT_OUT.finditer(text)), None)
    if mark is None:
        return shorten(text, limit)
    begin, end = text[: mark.start()], text[mark.end() :]
    num_kept = len(begin) + len(end)
    if num_kept <= limit:
        return text
    return _without_middle(begin, num_kept + int(mark[1]), end, limit)


def _without_middle(begin: str, length: int, end: str, limit: int) -> str:
    """Return begin and end of a text of some length, `limit` characters in all."""
    num_end = limit // 3
    kept_end = end[len(end) - num_end :]
    return f"{begin[: limit - num_end]} [... {length - limit} characters ...] {kept_end}"


def _is_in_place(mark: re.Match[str]) -> bool:
    """True if a mark is where `shorten` writes one: texts of models may have others."""
    num_end = len(mark.string) - mark.end()
    return num_end == (mark.start() + num_end) // 3
