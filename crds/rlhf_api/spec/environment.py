"""Environment variables of pods, and the objects with their values."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import IDENTIFIER_PATTERN, KEY_PATTERN, Contract, ObjectName
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, violation_if


class KeyReference(Contract):
    """A key of a Secret or a ConfigMap in the job's namespace."""

    name: ObjectName
    """The object's name."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=KEY_PATTERN)]
    """The key in it."""
    optional: bool = False
    """If true, pods start without the variable when object or key are missing."""


class VariableSource(Alternatives):
    """Source of a variable's value: exactly one of secretKeyRef, configMapKeyRef."""

    alternatives: ClassVar = ("secret_key_ref", "config_map_key_ref")

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""


class EnvironmentVariable(Contract):
    """An environment variable of pods."""

    name: Annotated[str, Field(pattern=IDENTIFIER_PATTERN, max_length=256)]
    """Its name."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value. Everyone who can read the job can read it, so secrets belong in valueFrom."""
    value_from: VariableSource | None = None
    """Source of its value, instead of value. Default: none."""

    validations: ClassVar = (
        Rule(
            holds="self.value == '' || !has(self.valueFrom)",
            what="value together with valueFrom",
            do="remove value or valueFrom",
            field=".valueFrom",
            check=lambda self: violation_if(self.value != "" and self.value_from is not None),
        ),
    )


# Environment variables of pods; the last one of a name counts.
Environment = Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64)]
