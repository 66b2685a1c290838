"""The rule 'exactly one of these fields', with one message for all its uses."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator
from pydantic.alias_generators import to_camel

from rlhf_api.base import Contract


class Alternatives(Contract):
    """A model of which exactly one of some fields is set."""

    alternatives: ClassVar[tuple[str, ...]]
    """Their Python names; the Kubernetes schema reads them, too."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = self._given()
        if len(given) != 1:
            allowed = ", ".join(to_camel(field) for field in self.alternatives)
            got = " and ".join(to_camel(field) for field in given) or "none"
            todo = "keep one of them and remove the rest" if given else "add one of them"
            raise ValueError(f"exactly one of {allowed} is needed: got {got}; {todo}")
        return self

    @property
    def chosen(self) -> str:
        """The Python name of the one that is set."""
        return self._given()[0]

    def _given(self) -> list[str]:
        return [field for field in self.alternatives if getattr(self, field) is not None]
