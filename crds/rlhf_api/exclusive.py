"""The rule 'exactly one of these fields', with one message for all its uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic.alias_generators import to_camel

from rlhf_api.base import Contract
from rlhf_api.cel import member, text
from rlhf_api.rules import Rule, Violation, violation_if


class Alternatives(Contract):
    """A model of which exactly one of some fields is set."""

    alternatives: ClassVar[tuple[str, ...]]
    """Their Python names."""

    @classmethod
    def all_validations(cls) -> tuple[Rule, ...]:
        """This rule, and the model's own."""
        return (exactly_one(cls.alternatives), *super().all_validations())

    @property
    def chosen(self) -> str:
        """The Python name of the one that is set."""
        return _given(self, self.alternatives)[0]


def exactly_one(fields: Sequence[str]) -> Rule:
    """The rule that of these fields exactly one is there.

    Args:
        fields: their Python names.
    """
    names = [to_camel(field) for field in fields]
    given = [f"has({member('self', name)})" for name in names]
    listed = [
        f"({has} ? {_joint(given[:index], name)} : '')"
        for index, (name, has) in enumerate(zip(names, given, strict=True))
    ]

    def check(model: Contract) -> list[Violation]:
        set_ones = _given(model, fields)
        return violation_if(len(set_ones) != 1, " and ".join(map(to_camel, set_ones)) or "none")

    return Rule(
        holds=f"[{', '.join(given)}].filter(given, given).size() == 1",
        what=f"exactly one of {', '.join(names)} is needed",
        got=f"({' || '.join(given)} ? {' + '.join(listed)} : 'none')",
        do="set one of them and remove the rest",
        check=check,
    )


def _given(model: Contract, fields: Sequence[str]) -> list[str]:
    return [field for field in fields if getattr(model, field) is not None]


def _joint(before: Sequence[str], name: str) -> str:
    """The name, after an `and` where one of those before it is there."""
    if not before:
        return text(name)
    return f"({' || '.join(before)} ? {text(' and ' + name)} : {text(name)})"
