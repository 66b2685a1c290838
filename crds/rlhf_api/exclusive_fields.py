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
    names = [to_camel(field) for field in fields]
    return Rule(
        holds=f"[{', '.join(_presence(names))}].filter(given, given).size() == 1",
        what=f"exactly one of {', '.join(names)} is needed",
        got=f"({' || '.join(_presence(names))} ? {_listed(names)} : 'none')",
        do="set one of them and remove the rest",
        check=lambda model: violation_if(
            len(_set_fields(model, fields)) != 1, _shown_fields(model, fields)
        ),
    )


def mutually_exclusive(fields: Sequence[str]) -> Rule:
    """The rule that at most one of these fields is set.

    Args:
        fields: their Python names.
    """
    names = [to_camel(field) for field in fields]
    return Rule(
        holds=f"[{', '.join(_presence(names))}].filter(given, given).size() <= 1",
        what=f"at most one of {', '.join(names)} is possible",
        got=_listed(names),
        do="keep one of them and remove the rest",
        check=lambda model: violation_if(
            len(_set_fields(model, fields)) > 1, _shown_fields(model, fields)
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
