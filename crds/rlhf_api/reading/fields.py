"""The contract as a tree of fields, read from the models once.

`rlhf explain`, the reference documentation and the messages about bad manifests all speak from this
tree, so a field has one description, one default and one statement of what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rlhf_api.base import Contract
from rlhf_api.limits import Schema, describe_allowed, describe_keys, without_null
from rlhf_api.members import Member, enum_members, find_enumeration
from rlhf_api.problems import FieldPath
from rlhf_api.quantity import INT_OR_STRING
from rlhf_api.spec.job import RLHFJob

FieldKind = Literal[
    "object", "list", "map", "string", "integer", "number", "boolean", "quantity", "any"
]


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()
"""The default of a field that must be given."""


@dataclass(frozen=True)
class FieldDoc:
    """One field of the contract, under its wire name."""

    name: str
    """Wire name; empty for the root and for elements of lists and maps."""
    path: str
    """From the root, with [] for any list index and <name> for any map key."""
    kind: FieldKind
    """What it holds."""
    type_name: str
    """The same as Kubernetes writes it, such as []NodePool or map[string]ModelSpec."""
    description: str
    """What it means, on one line."""
    type_description: str
    """What an object's or an enumeration's type means; empty for others."""
    required: bool
    """Whether it must be given."""
    default: object
    """Its value when left out; NO_DEFAULT if it must be given."""
    allowed: str
    """What may be written, in words; empty for objects."""
    key_allowed: str = ""
    """What a map's keys may be, in words."""
    members: tuple[Member, ...] = ()
    """The values of an enumeration."""
    fields: tuple[FieldDoc, ...] = ()
    """The fields of an object."""
    element: FieldDoc | None = None
    """What a list or map holds."""

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
        """The object field of this wire name."""
        return next((each for each in self.fields if each.name == name), None)


@cache
def contract() -> FieldDoc:
    """The root of the tree: RLHFJob itself."""
    return field_tree(RLHFJob)


def field_tree(model: type[Contract]) -> FieldDoc:
    """Any other model as such a tree."""
    schema = model.model_json_schema(by_alias=True)
    return _Reader(schema.get("$defs", {})).read("", "", schema, required=True)


def field_at(path: FieldPath) -> FieldDoc | None:
    """The field at a document's path; None where the contract has none."""
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
    """All fields below a node, parents before children, elements of lists and maps left out."""
    found: list[FieldDoc] = []
    for child in node.object_fields:
        found += [child, *all_fields(child)]
    return found


class _Reader:
    """Builds the tree from the models' JSON schema."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions

    def read(self, name: str, path: str, schema: Schema, *, required: bool) -> FieldDoc:
        """Read one field and everything below it."""
        target = self._resolve(without_null(schema))
        kind = _kind(target)
        element = self._element(path, target)
        enumeration = find_enumeration(str(target.get("title"))) if "enum" in target else None
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


def _default(schema: Schema, kind: FieldKind) -> Any:
    """The default as a manifest would write it; an object's own defaults show at its fields."""
    default = schema.get("default")
    return {} if kind == "object" and default is not None else default


def _one_line(text: object) -> str:
    return " ".join(str(text).split()) if text else ""
