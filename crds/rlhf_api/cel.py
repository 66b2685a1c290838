"""Rules in CEL, the language in which the API server checks what a schema's types cannot say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_api.problems import Problem

_RESERVED = (
    *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
    *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
)
"""Words that CEL keeps for itself; Kubernetes puts underscores around fields of these names."""

_HOLE = "\0"


@dataclass(frozen=True)
class Rule:
    """One rule of a schema, over `self` (and `oldSelf`, then it is only checked on updates)."""

    holds: str
    """The condition, in CEL."""
    what: str
    """What is wrong where it does not hold."""
    do: str
    """What to do then."""
    got: str = ""
    """A text in CEL: what stands there. Of bounded length, or the API server refuses the rule; so
    numbers, whose texts it takes for endless, cannot be shown."""
    allowed: str = ""
    """What may stand there."""
    field: str = ""
    """The path of the field that is to blame, from `self`, such as .source.sameAs."""
    reason: Literal["", "FieldValueForbidden", "FieldValueRequired"] = ""
    """Another kind of error than that of an invalid value."""

    def document(self) -> dict[str, str]:
        """Return it as an entry of x-kubernetes-validations."""
        entry = {"rule": self.holds, "message": self._message("")}
        if self.got:
            before, _, after = self._message(_HOLE).partition(_HOLE)
            entry["messageExpression"] = f"{text(before)} + {self.got} + {text(after)}"
        if self.field:
            entry["fieldPath"] = self.field
        return entry | ({"reason": self.reason} if self.reason else {})

    def _message(self, got: str) -> str:
        return Problem((), self.what, got=got, allowed=self.allowed, do=self.do).message


def text(value: str) -> str:
    """Write a text as a literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def texts(values: Sequence[str]) -> str:
    """Write a list of texts as a literal."""
    return f"[{', '.join(text(value) for value in values)}]"


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


def exactly_one(names: Sequence[str]) -> Rule:
    """The rule that of these fields exactly one is there."""
    given = [f"has({member('self', name)})" for name in names]
    listed = [
        f"({has} ? {_joint(given[:index], name)} : '')"
        for index, (name, has) in enumerate(zip(names, given, strict=True))
    ]
    return Rule(
        holds=f"[{', '.join(given)}].filter(given, given).size() == 1",
        what=f"exactly one of {', '.join(names)} is needed",
        got=f"({' || '.join(given)} ? {' + '.join(listed)} : 'none')",
        do="set one of them and remove the rest",
    )


def _joint(before: Sequence[str], name: str) -> str:
    """The name, after an `and` where one of those before it is there."""
    if not before:
        return text(name)
    return f"({' || '.join(before)} ? {text(' and ' + name)} : {text(name)})"
