"""Google-style docstrings of tools. Standard library only."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

_SECTION = re.compile(
    r"(args|arguments|parameters|params|returns?|yields?|raises|examples?|notes?)\s*:\s*",
    re.IGNORECASE,
)
_ARGUMENT_SECTIONS = ("args", "arguments", "parameters", "params")
_ARGUMENT = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """Contents of a docstring.

    description: text before the first section.
    arguments: descriptions by name.
    """

    description: str
    arguments: Mapping[str, str]


def parse_docstring(text: str) -> Docstring:
    """Read the description and the arguments; other sections are left out."""
    section = ""
    description: list[str] = []
    argument_lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1].lower()
        elif section in _ARGUMENT_SECTIONS:
            argument_lines.append(line)
        elif not section:
            description.append(line)
    return Docstring("\n".join(description).strip(), _arguments(argument_lines))


def _arguments(lines: list[str]) -> dict[str, str]:
    """Join each argument's lines: continuations are indented further than its name."""
    filled = [line for line in lines if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    arguments: dict[str, str] = {}
    current = ""
    for line in filled:
        match = _ARGUMENT.fullmatch(line[indent:])
        if match is not None:
            current = match[1]
            arguments[current] = match[2].strip()
        elif current:
            arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return arguments
