"""Errors of text that is not YAML: position, and a message of our own."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from rlhf_api.problems import Problem


@dataclass(frozen=True)
class Position:
    """A position in a text, counted from 1."""

    line: int
    column: int


class YamlError(Exception):
    """A text cannot be read beyond a position."""

    def __init__(
        self, position: Position, what: str, *, got: str = "", allowed: str = "", do: str = ""
    ):
        super().__init__(what)
        self.problem = Problem(
            (), what, got=got, allowed=allowed, do=do, line=position.line, column=position.column
        )


def syntax_error(error: yaml.YAMLError | ValueError, text: str) -> YamlError:
    """Convert an error of PyYAML to a position, a message and the usual fix."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        position = Position(before.count("\n") + 1, error.position - before.rfind("\n"))
        code = f"U+{ord(text[error.position]):04X}"
        return YamlError(position, "a character that YAML does not allow", got=code, do="remove it")
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return YamlError(Position(1, 1), f"not YAML: {error}", do="check the escapes in quotes")
    position = Position(mark.line + 1, mark.column + 1)
    problem = (error.problem or "a syntax error").removesuffix(" that cannot start any token")
    if "\\t" in problem:
        return YamlError(position, "not YAML", got="a tab", do="indent with spaces")
    problem = f"{problem} {error.context}" if error.context else problem
    return YamlError(
        position, f"not YAML: {problem}", do="check indentation, quotes and brackets here"
    )
