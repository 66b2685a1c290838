"""Rules that types cannot say: each stands once, as a check for Python and a condition in CEL.

A model lists its own in `validations`; the models then check them, and the Kubernetes schema has
them, with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_api.cel import text
from rlhf_api.problems import FieldPath, Problem

_HOLE = "\0"


@dataclass(frozen=True)
class Violation:
    """A place where a rule does not hold."""

    got: str
    """What stands there."""
    at: FieldPath = ()
    """Its path, from the model; empty: the rule's field."""
    allowed: str = ""
    """What may stand there, where more can be said than the rule says."""
    do: str = ""
    """What to do then, where more can be said."""


def violation_if(is_wrong: bool, got: object = "", allowed: str = "") -> list[Violation]:
    """What a check of one place returns."""
    return [Violation(str(got), allowed=allowed)] if is_wrong else []


def _nothing(model: Any) -> Iterable[Violation]:
    return ()


@dataclass(frozen=True)
class Rule:
    """One rule of a model, over `self` (and `oldSelf`, then it is only checked on updates)."""

    holds: str
    """The condition, in CEL; empty where the Kubernetes schema says it otherwise, as of a list's
    keys."""
    what: str
    """What is wrong where it does not hold."""
    do: str
    """What to do then."""
    check: Callable[[Any], Iterable[Violation]] = _nothing
    """The same condition in Python: where a model does not keep it. The default is for what only
    the API server sees."""
    got: str = ""
    """A text in CEL: what stands there. Of bounded length, or the API server refuses the rule; so
    numbers, whose texts it takes for endless, cannot be shown."""
    allowed: str = ""
    """What may stand there."""
    field: str = ""
    """The path of the field that is to blame, from `self`, such as .source.sameAs."""
    reason: Literal["", "FieldValueForbidden", "FieldValueRequired"] = ""
    """Another kind of error than that of an invalid value."""

    def problems(self, model: Any) -> Iterator[Problem]:
        """Every place in a model where the rule does not hold, with paths from the model."""
        return map(self.problem_for, self.check(model))

    def problem_for(self, place: Violation) -> Problem:
        """That the rule does not hold at a place."""
        blamed: FieldPath = tuple(self.field.split(".")[1:])
        allowed, do = place.allowed or self.allowed, place.do or self.do
        return Problem(place.at or blamed, self.what, place.got, allowed, do)

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


class BrokenRules(ValueError):
    """A model that does not keep its rules; paths start at the model."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
