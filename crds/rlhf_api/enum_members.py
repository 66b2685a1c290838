"""Members of an enumeration with the docstrings below them in the source."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache


@dataclass(frozen=True)
class Member:
    """One allowed value."""

    value: str
    """The value in a manifest."""
    description: str
    """Its docstring on one line; empty if it has none."""


@cache
def enum_members(enumeration: type[StrEnum]) -> tuple[Member, ...]:
    """List the values of an enumeration in order, each with its docstring."""
    docs = member_docstrings(enumeration)
    members = enumeration.__members__.items()
    return tuple(Member(member.value, docs.get(name, "")) for name, member in members)


def member_docstrings(enumeration: type[Enum]) -> dict[str, str]:
    """Docstrings below the members of an enumeration, by the members' Python names."""
    # Python does not keep these docstrings at run time.
    (definition,) = ast.parse(inspect.getsource(enumeration)).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        match statement, following:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


@cache
def find_enumeration(name: str) -> type[StrEnum] | None:
    """The contract's enumeration with this class name, or None."""
    matches = [
        enumeration
        for enumeration in StrEnum.__subclasses__()
        if enumeration.__name__ == name and enumeration.__module__.startswith("rlhf_api.")
    ]
    return matches[0] if matches else None
