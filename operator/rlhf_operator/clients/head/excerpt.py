"""What of a foreign text may be shown: a short line without credentials."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EXCERPT_CHARACTERS: Final = 300
_LOOKED_AT: Final = 20
"""Times as many characters are looked at, because spaces are taken out."""


def excerpt(text: str, secrets: Iterable[str], characters: int = EXCERPT_CHARACTERS) -> str:
    """The beginning of a text as one printable line, with secrets left out.

    Args:
        text: What somebody else wrote.
        secrets: What must not be shown, such as values of headers with credentials.
        characters: How long the line may be.
    """
    for secret in secrets:
        word = secret.removeprefix("Bearer ")
        if word:
            text = text.replace(word, "[secret]")
    seen = text[: characters * _LOOKED_AT]
    line = "".join(letter if letter.isprintable() else " " for letter in seen)
    line = " ".join(line.split())
    return line if len(line) <= characters else f"{line[: characters - 3]}..."
