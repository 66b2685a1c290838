"""Rules that types cannot express: each is a check in Python and a condition in CEL.

A model lists its rules in `validations`. The model checks them, and the Kubernetes schema contains
them with the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_api.cel_literals import text
from rlhf_api.problems import FieldPath, Problem

_PLACEHOLDER = "\0"


@dataclass(frozen=True)
class Violation:
    """One violation of a rule."""

    got: str
    """The current value."""
    at: FieldPath = ()
    """Path of the value from the model; empty: the rule's field."""
    allowed: str = ""
    """The allowed values, if more specific than the rule's."""
    do: str = ""
    """The fix, if more specific than the rule's."""
    what: str = ""
    """The fault, if more specific than the rule's."""


def violation_if(is_wrong: bool, got: object = "", allowed: str = "") -> list[Violation]:
    """The result of a check of one value: a violation if `is_wrong`, else nothing."""
    return [Violation(str(got), allowed=allowed)] if is_wrong else []


def violation_of(problem: Problem) -> Violation:
    """A problem that another check has found, as a violation of a rule."""
    return Violation(problem.got, problem.location, problem.allowed, problem.do, problem.what)


def _no_violations(model: Any) -> Iterable[Violation]:
    return ()


@dataclass(frozen=True)
class Rule:
    """One rule of a model, over `self` (and `oldSelf`, then it is only checked on updates)."""

    holds: str
    """The condition in CEL; empty if the definition states it otherwise, such as unique keys of a
    list, or has no types there, as in pods."""
    what: str
    """The fault, if the condition does not hold."""
    do: str
    """The fix."""
    # Rules about one manifest have a check in Python, too: a manifest is checked before it reaches
    # any cluster.
    check: Callable[[Any], Iterable[Violation]] = _no_violations
    """The same condition in Python: yields the violations of a model. Default: only the API server
    can check the rule."""
    # The API server refuses a rule with a message of unbounded length. It assumes that texts of
    # numbers are unbounded, so numbers cannot be shown.
    got: str = ""
    """CEL expression for the current value, as a string of bounded length."""
    allowed: str = ""
    """The allowed values."""
    field: str = ""
    """Path of the field in question from `self`, such as .source.sameAs."""
    reason: Literal["", "FieldValueForbidden", "FieldValueRequired"] = ""
    """Kind of the error, if not that of an invalid value."""

    def problems(self, model: Any) -> Iterator[Problem]:
        """Yield the violations in a model as problems, with paths from the model."""
        return map(self.problem_for, self.check(model))

    def problem_for(self, violation: Violation) -> Problem:
        """A violation as a problem."""
        own_field: FieldPath = tuple(self.field.split(".")[1:])
        allowed, do = violation.allowed or self.allowed, violation.do or self.do
        what = violation.what or self.what
        return Problem(violation.at or own_field, what, violation.got, allowed, do)

    def document(self) -> dict[str, str]:
        """The rule as an entry of x-kubernetes-validations."""
        entry = {"rule": self.holds, "message": self._message("")}
        if self.got:
            # Split the message at the value, which CEL inserts between both parts.
            before, _, after = self._message(_PLACEHOLDER).partition(_PLACEHOLDER)
            entry["messageExpression"] = f"{text(before)} + {self.got} + {text(after)}"
        if self.field:
            entry["fieldPath"] = self.field
        return entry | ({"reason": self.reason} if self.reason else {})

    def _message(self, got: str) -> str:
        return Problem((), self.what, got=got, allowed=self.allowed, do=self.do).message


class BrokenRules(ValueError):
    """A model violates its rules; paths start at the model."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
