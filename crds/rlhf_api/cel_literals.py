"""Literals and names in CEL, the language of validation rules in a Kubernetes schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Reserved words of CEL. Kubernetes puts underscores around fields of these names.
_RESERVED = (
    *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
    *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
)


def text(value: str) -> str:
    """A CEL string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def texts(values: Sequence[str]) -> str:
    """A CEL list literal of strings."""
    return f"[{', '.join(text(value) for value in values)}]"


def cel_map(entries: Mapping[str, str]) -> str:
    """A CEL map literal.

    Args:
        entries: values are CEL expressions.
    """
    return f"{{{', '.join(f'{text(key)}: {value}' for key, value in entries.items())}}}"


def member(owner: str, name: str) -> str:
    """The expression for a field of an object, such as self.spec.

    Raises:
        ValueError: as `escaped`.
    """
    return f"{owner}.{escaped(name)}"


def escaped(name: str) -> str:
    """The name of a field as CEL sees it.

    Raises:
        ValueError: the name has other characters than letters and digits.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name):
        raise ValueError(f"not a name for a field: got {name!r}, allowed letters and digits")
    return f"__{name}__" if name in _RESERVED else name
