"""The rules 'exactly one of these fields' and 'at most one', with one message for all uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic.alias_generators import to_camel

from rlhf_api.base import Contract
from rlhf_api.cel_literals import member, text
from rlhf_api.rules import Rule, violation_if


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
    return _one_of(fields, 1, "exactly one of {} is needed", "set one of them and remove the rest")


def mutually_exclusive(fields: Sequence[str]) -> Rule:
    """The rule that at most one of these fields is set.

    Args:
        fields: their Python names.
    """
    return _one_of(
        fields, 0, "at most one of {} is possible", "keep one of them and remove the rest"
    )


def _one_of(fields: Sequence[str], least: int, what: str, do: str) -> Rule:
    """The rule that at most one of some fields is set.

    Args:
        fields: their Python names.
        least: number of set fields, 0 or 1.
        what: the fault; {} stands for the fields' names.
        do: the fix.
    """
    names = [to_camel(field) for field in fields]
    listed = _listed(names)
    return Rule(
        holds=f"[{', '.join(_presence(names))}].filter(given, given).size() "
        + ("== 1" if least else "<= 1"),
        what=what.format(", ".join(names)),
        got=f"({' || '.join(_presence(names))} ? {listed} : 'none')" if least else listed,
        do=do,
        check=lambda model: violation_if(
            not least <= len(_set_fields(model, fields)) <= 1, _shown_fields(model, fields)
        ),
    )


def _shown_fields(model: Contract, fields: Sequence[str]) -> str:
    return " and ".join(map(to_camel, _set_fields(model, fields))) or "none"


def _presence(names: Sequence[str]) -> list[str]:
    return [f"has({member('self', name)})" for name in names]


# CEL has no join: each name adds its own ` and `, depending on the fields before it.
def _listed(names: Sequence[str]) -> str:
    present = _presence(names)
    listed = [
        f"({has} ? {_joint(present[:index], name)} : '')"
        for index, (name, has) in enumerate(zip(names, present, strict=True))
    ]
    return " + ".join(listed)


def _set_fields(model: Contract, fields: Sequence[str]) -> list[str]:
    return [field for field in fields if getattr(model, field) is not None]


# CEL: the name, preceded by ` and ` if an earlier field is set.
def _joint(before: Sequence[str], name: str) -> str:
    if not before:
        return text(name)
    return f"({' || '.join(before)} ? {text(' and ' + name)} : {text(name)})"
