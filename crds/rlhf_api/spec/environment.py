"""Environment variables of pods, and the objects that their values come from."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import IDENTIFIER_PATTERN, KEY_PATTERN, Contract, ObjectName
from rlhf_api.exclusive import Alternatives
from rlhf_api.rules import Rule, violation_if


class KeyReference(Contract):
    """A key of a Secret or a ConfigMap in the job's namespace."""

    name: ObjectName
    """The object's name."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=KEY_PATTERN)]
    """The key in it."""
    optional: bool = False
    """Whether pods also start where object or key are missing; the variable is then not set."""


class VariableSource(Alternatives):
    """Where a variable's value comes from: exactly one of secretKeyRef, configMapKeyRef."""

    alternatives: ClassVar = ("secret_key_ref", "config_map_key_ref")

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""


class EnvironmentVariable(Contract):
    """An environment variable, as pods have it."""

    name: Annotated[str, Field(pattern=IDENTIFIER_PATTERN, max_length=256)]
    """Its name."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value; who reads the job reads it, so secrets belong in valueFrom."""
    value_from: VariableSource | None = None
    """Where its value comes from instead. Default: from value."""

    validations: ClassVar = (
        Rule(
            holds="self.value == '' || !has(self.valueFrom)",
            what="a value beside valueFrom",
            do="remove value or valueFrom",
            field=".valueFrom",
            check=lambda self: violation_if(self.value != "" and self.value_from is not None),
        ),
    )


Environment = Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64)]
"""Variables of pods; of two with one name the last counts."""
