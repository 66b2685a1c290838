"""Texts of models, shown without what they could do to a terminal or a page."""

from __future__ import annotations

import unicodedata

# Control and format characters, lone surrogates, and separators of lines that are no newline.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Newlines, tabs, and the joiners that letters of many scripts and emoji need.
_ALLOWED = frozenset("\n\t\u200c\u200d")


def visible_text(text: str) -> str:
    r"""Return a text with `\x1b` or `\u202e` in place of characters that control how it is shown.

    Such a character could move the cursor, change colours or reverse the text after it.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _ALLOWED or unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
