"""What the API server does with an object that is created or updated, as far as the CRD says it.

In its order: drop unknown fields, drop null where it is not allowed, fill in defaults, check types
and limits, check keys of lists, check rules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema

from rlhf_api.crd.definition import crd

from .rules import Broken, Schema, broken_rules


@dataclass(frozen=True)
class Admission:
    """What became of an object. Of its metadata only the name is looked at and kept."""

    document: dict[str, Any]
    """As it would be stored."""
    dropped: list[str] = field(default_factory=list)
    """Unknown fields: kubectl refuses them by itself, other clients get a warning."""
    invalid: list[str] = field(default_factory=list)
    """What is wrong with types, limits and keys."""
    broken: list[Broken] = field(default_factory=list)
    """Rules that do not hold; they are checked where the rest is right."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The document as its user sees it."""
        return {name: each for name, each in self.document.items() if name != "status"}

    @property
    def is_refused(self) -> bool:
        """Whether it would not be stored."""
        return bool(self.invalid or self.broken)


@cache
def root_schema() -> Schema:
    """The schema of the whole object."""
    (version,) = crd()["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def admit(document: dict[str, Any], old: dict[str, Any] | None = None) -> Admission:
    """Create an object, or update one; `old` is the document as it is stored."""
    schema = root_schema()
    stored = copy.deepcopy(document) | {"metadata": {"name": document["metadata"]["name"]}}
    dropped = [*drop_unknown(schema, stored)]
    drop_null(schema, stored)
    fill_in(schema, stored)
    invalid = [*wrong_types(schema, stored), *repeated_keys(schema, stored)]
    broken = [] if invalid else [*broken_rules(schema, stored, old)]
    return Admission(stored, dropped, invalid, broken)


def drop_unknown(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Remove what the schema does not have, and name it."""
    if isinstance(value, dict) and "properties" in schema:
        for name in [*value]:
            below = schema["properties"].get(name)
            if below is None:
                del value[name]
                yield f"{path}.{name}".lstrip(".")
            else:
                yield from drop_unknown(below, value[name], f"{path}.{name}")
    elif isinstance(value, dict) and "additionalProperties" in schema:
        for name, each in value.items():
            yield from drop_unknown(schema["additionalProperties"], each, f"{path}[{name}]")
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield from drop_unknown(schema["items"], each, f"{path}[{index}]")


def drop_null(schema: Schema, value: Any) -> None:
    """Remove null from fields that may not be null and have no default."""
    if isinstance(value, dict):
        for name in [*value]:
            below = _below(schema, name)
            if value[name] is None and "nullable" not in below and "default" not in below:
                del value[name]
            else:
                drop_null(below, value[name])
    elif isinstance(value, list):
        for each in value:
            drop_null(schema.get("items", {}), each)


def fill_in(schema: Schema, value: Any) -> None:
    """Fill in defaults, and what they leave out in turn."""
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            missing = name not in value or (value[name] is None and "nullable" not in below)
            if missing and "default" in below:
                value[name] = copy.deepcopy(below["default"])
        for name, each in value.items():
            fill_in(_below(schema, name), each)
    elif isinstance(value, list):
        for each in value:
            fill_in(schema.get("items", {}), each)


def _below(schema: Schema, name: str) -> Schema:
    fields: dict[str, Schema] = schema.get("properties", {})
    return fields.get(name, schema.get("additionalProperties", {}))


def wrong_types(schema: Schema, value: Any) -> Iterator[str]:
    """What is wrong with types and limits."""
    for error in jsonschema.Draft4Validator(_as_json_schema(schema)).iter_errors(value):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def _as_json_schema(node: Any) -> Any:
    """Kubernetes' schemas are JSON schema of draft 4, but for `nullable`."""
    if isinstance(node, list):
        return [_as_json_schema(each) for each in node]
    if not isinstance(node, dict):
        return node
    plain = {name: _as_json_schema(each) for name, each in node.items()}
    if plain.pop("x-kubernetes-int-or-string", None) is True:
        plain["type"] = ["integer", "string"]
    if plain.pop("nullable", None) is True:
        plain["type"] = [plain["type"], "null"]
    return plain


def repeated_keys(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Keys that occur twice in a list that has them."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from repeated_keys(_below(schema, name), each, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for key in schema.get("x-kubernetes-list-map-keys", []):
            found = [each.get(key) for each in value if isinstance(each, dict)]
            yield from (f"{path}: {each} twice" for each in {*found} if found.count(each) > 1)
        for each in value:
            yield from repeated_keys(schema.get("items", {}), each, f"{path}[]")
