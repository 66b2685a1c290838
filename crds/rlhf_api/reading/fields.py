"""The contract as a tree of fields, read from the models once.

`rlhf explain`, the reference documentation and messages about manifests all use this tree, so a
field has one description, one default and one statement of its allowed values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from rlhf_api.base import Contract, models_by_name
from rlhf_api.enum_members import Member, enum_members, find_enumeration
from rlhf_api.limits import Schema, describe_allowed, describe_keys, without_null
from rlhf_api.problems import FieldPath
from rlhf_api.quantity import INT_OR_STRING
from rlhf_api.spec.job import RLHFJob

FieldKind = Literal[
    "object", "list", "map", "string", "integer", "number", "boolean", "quantity", "any"
]


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


# Marks a required field, which has no default.
NO_DEFAULT = _NoDefault()


@dataclass(frozen=True)
class FieldDoc:
    """One field of the contract, under its wire name."""

    name: str
    """Wire name; empty for the root and for elements of lists and maps."""
    path: str
    """Path from the root, with [] for any list index and <name> for any map key."""
    kind: FieldKind
    """Kind of value."""
    type_name: str
    """Name of the type as Kubernetes writes it, such as []NodePool or map[string]ModelSpec."""
    description: str
    """Description of the field, on one line."""
    type_description: str
    """Description of an object's or an enumeration's type; empty for others."""
    required: bool
    """True if a manifest must set it."""
    default: object
    """Its default; NO_DEFAULT if it is required."""
    allowed: str
    """The allowed values in words; empty for objects."""
    key_allowed: str = ""
    """The allowed keys of a map, in words."""
    members: tuple[Member, ...] = ()
    """The values of an enumeration."""
    fields: tuple[FieldDoc, ...] = ()
    """The fields of an object."""
    element: FieldDoc | None = None
    """The entries of a list or map."""
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Reasons why further fields of an object, which Kubernetes has, cannot be set."""

    @property
    def summary(self) -> str:
        """The first sentence of the description."""
        head, stop, _ = self.description.partition(". ")
        return head + "." if stop else head

    @property
    def object_fields(self) -> tuple[FieldDoc, ...]:
        """Its fields, or those of the objects in its list or map."""
        return self.element.object_fields if self.element else self.fields

    def field(self, name: str) -> FieldDoc | None:
        """The field with this wire name, or None."""
        return next((child for child in self.fields if child.name == name), None)


@cache
def contract() -> FieldDoc:
    """The root of the tree: RLHFJob."""
    return field_tree(RLHFJob)


def field_tree(model: type[Contract]) -> FieldDoc:
    """The tree of fields of a model."""
    # From the JSON schema, so that pydantic's limits and the explained ones cannot differ.
    schema = model.model_json_schema(by_alias=True)
    return _Reader(schema.get("$defs", {})).read("", "", schema, required=True)


def field_at(path: FieldPath) -> FieldDoc | None:
    """The field at a document's path; None if the contract has none."""
    node: FieldDoc | None = contract()
    for segment in path:
        if node is None:
            return None
        if node.kind == "object":
            node = node.field(segment) if isinstance(segment, str) else None
        else:
            node = node.element
    return node


def all_fields(node: FieldDoc) -> list[FieldDoc]:
    """All fields below a node, parents before children, without elements of lists and maps."""
    fields: list[FieldDoc] = []
    for child in node.object_fields:
        fields += [child, *all_fields(child)]
    return fields


class _Reader:
    """Builds the tree from the models' JSON schema."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions
        self._models = models_by_name()

    def read(self, name: str, path: str, schema: Schema, *, required: bool) -> FieldDoc:
        """Read one field and everything below it."""
        target = self._resolve(without_null(schema))
        kind = _kind(target)
        element = self._element(path, target)
        enumeration = find_enumeration(str(target.get("title"))) if "enum" in target else None
        model = self._models.get(str(target.get("title"))) if kind == "object" else None
        return FieldDoc(
            name=name,
            path=path,
            kind=kind,
            type_name=_type_name(kind, target, element),
            description=_one_line(schema.get("description") or target.get("description")),
            type_description=_one_line(target.get("description")) if "title" in target else "",
            required=required,
            default=NO_DEFAULT if required else _default(schema, kind),
            allowed=describe_allowed(target),
            key_allowed=describe_keys(target),
            members=enum_members(enumeration) if enumeration else (),
            fields=self._fields(path, target),
            element=element,
            reserved=model.reserved if model is not None else {},
        )

    def _resolve(self, schema: Schema) -> Schema:
        reference = schema.get("$ref")
        return self._definitions[reference.rpartition("/")[2]] if reference else schema

    def _fields(self, path: str, schema: Schema) -> tuple[FieldDoc, ...]:
        needed = schema.get("required", [])
        return tuple(
            self.read(name, f"{path}.{name}" if path else name, member, required=name in needed)
            for name, member in schema.get("properties", {}).items()
        )

    def _element(self, path: str, schema: Schema) -> FieldDoc | None:
        if schema.get("type") == "array":
            return self.read("", f"{path}[]", schema["items"], required=True)
        values = [*schema.get("patternProperties", {}).values()]
        if isinstance(schema.get("additionalProperties"), dict):
            values.append(schema["additionalProperties"])
        return self.read("", f"{path}.<name>", values[0], required=True) if values else None


def _kind(schema: Schema) -> FieldKind:
    if INT_OR_STRING in schema:
        return "quantity"
    name: str | None = schema.get("type")
    match name:
        case "object":
            return "object" if "properties" in schema else "map"
        case "array":
            return "list"
        case "string" | "integer" | "number" | "boolean":
            return name
        case _:
            return "any"


def _type_name(kind: FieldKind, schema: Schema, element: FieldDoc | None) -> str:
    inner = element.type_name if element else ""
    names = {"object": str(schema.get("title")), "list": f"[]{inner}", "map": f"map[string]{inner}"}
    return names.get(kind) or str(kind)


# The default as a manifest writes it. Objects show {}, since their fields show their own.
def _default(schema: Schema, kind: FieldKind) -> Any:
    default = schema.get("default")
    return {} if kind == "object" and default is not None else default


def _one_line(text: object) -> str:
    return " ".join(str(text).split()) if text else ""
