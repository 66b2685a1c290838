"""What the members of an enumeration mean: the docstrings under them in the source."""

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
    """As a manifest writes it."""
    description: str
    """Its docstring on one line; empty if it has none."""


@cache
def enum_members(enumeration: type[StrEnum]) -> tuple[Member, ...]:
    """List an enumeration's values in order, each with the docstring below it in the source."""
    docs = member_docstrings(enumeration)
    members = enumeration.__members__.items()
    return tuple(Member(member.value, docs.get(name, "")) for name, member in members)


def member_docstrings(enumeration: type[Enum]) -> dict[str, str]:
    """Read the docstrings below an enumeration's members, by the members' Python names."""
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
    """Return the contract's enumeration of this class name, if there is one."""
    found = [
        each
        for each in StrEnum.__subclasses__()
        if each.__name__ == name and each.__module__.startswith("rlhf_api.")
    ]
    return found[0] if found else None
