"""The rule 'exactly one of these fields', with one message for all its uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic.alias_generators import to_camel

from rlhf_api.base import Contract
from rlhf_api.cel_literals import member, text
from rlhf_api.rules import Rule, Violation, violation_if


class Alternatives(Contract):
    """A model in which exactly one of some fields is set."""

    alternatives: ClassVar[tuple[str, ...]]
    """Python names of these fields."""

    @classmethod
    def all_validations(cls) -> tuple[Rule, ...]:
        """All rules of the model, first that exactly one alternative is set."""
        return (exactly_one(cls.alternatives), *super().all_validations())

    @property
    def chosen(self) -> str:
        """Python name of the field that is set."""
        return _set_fields(self, self.alternatives)[0]


def exactly_one(fields: Sequence[str]) -> Rule:
    """The rule that exactly one of these fields is set.

    Args:
        fields: their Python names.
    """
    names = [to_camel(field) for field in fields]
    present = [f"has({member('self', name)})" for name in names]
    # CEL has no join: each name adds its own ` and `, depending on the fields before it.
    listed = [
        f"({has} ? {_joint(present[:index], name)} : '')"
        for index, (name, has) in enumerate(zip(names, present, strict=True))
    ]

    def check(model: Contract) -> list[Violation]:
        names = _set_fields(model, fields)
        return violation_if(len(names) != 1, " and ".join(map(to_camel, names)) or "none")

    return Rule(
        holds=f"[{', '.join(present)}].filter(given, given).size() == 1",
        what=f"exactly one of {', '.join(names)} is needed",
        got=f"({' || '.join(present)} ? {' + '.join(listed)} : 'none')",
        do="set one of them and remove the rest",
        check=check,
    )


def _set_fields(model: Contract, fields: Sequence[str]) -> list[str]:
    return [field for field in fields if getattr(model, field) is not None]


# CEL: the name, preceded by ` and ` if an earlier field is set.
def _joint(before: Sequence[str], name: str) -> str:
    if not before:
        return text(name)
    return f"({' || '.join(before)} ? {text(' and ' + name)} : {text(name)})"
