"""Words of CEL, the language in which the API server checks what a schema's types cannot say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_RESERVED = (
    *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
    *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
)
"""Words that CEL keeps for itself; Kubernetes puts underscores around fields of these names."""


def text(value: str) -> str:
    """Write a text as a literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def texts(values: Sequence[str]) -> str:
    """Write a list of texts as a literal."""
    return f"[{', '.join(text(value) for value in values)}]"


def cel_map(entries: Mapping[str, str]) -> str:
    """Write a map as a literal: of texts to what is written in CEL already."""
    return f"{{{', '.join(f'{text(key)}: {value}' for key, value in entries.items())}}}"


def member(owner: str, name: str) -> str:
    """Write the field of an object, such as self.spec. Raises ValueError as `escaped` does."""
    return f"{owner}.{escaped(name)}"


def escaped(name: str) -> str:
    """Write the name of a field as Kubernetes gives it to CEL.

    Raises ValueError for a name that needs more than underscores around it.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name):
        raise ValueError(f"not a name for a field: got {name!r}, allowed letters and digits")
    return f"__{name}__" if name in _RESERVED else name
