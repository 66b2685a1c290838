"""Structural schemas of the contract's models for Kubernetes; every field is described and bounded.

Differences from pydantic's JSON schema: no references, optional fields are not nullable, an
object's default is {} so that the defaults of its fields apply, and rules check the keys of maps.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_api.base import Contract, models_by_name
from rlhf_api.cel_literals import text
from rlhf_api.enum_members import enum_members, find_enumeration
from rlhf_api.limits import Schema, describe_keys, without_null
from rlhf_api.quantity import INT_OR_STRING
from rlhf_api.rules import Rule
from rlhf_api.spec.pod.open_schema import ANY_CONTENT
from rlhf_api.spec.resources import NodePool
from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.status import Condition

# The unique key of lists of these models. Other lists are replaced as a whole.
LIST_KEYS: dict[type[Contract], str] = {NodePool: "name", RewardSpec: "name", Condition: "type"}

# Any string, number or boolean.
# A structural schema cannot list several types. This one excludes objects and lists: they would
# need at least one entry and at most none.
_PLAIN_VALUE: Schema = {
    ANY_CONTENT: True,
    "minProperties": 1,
    "maxProperties": 0,
    "minItems": 1,
    "maxItems": 0,
}


# A value of an open enumeration. Only the description lists its values.
OPEN_VALUE: Schema = {"type": "string", "maxLength": 63}


def structural_schema(model: type[Contract], *, open_values: bool = False) -> Schema:
    """The schema of a model for a CustomResourceDefinition, with the rules of all models in it.

    Args:
        open_values: enumerations accept unlisted words, as in a status: later releases add values,
            which clients of this release must be able to read.
    """
    schema = model.model_json_schema(by_alias=True)
    return _Writer(schema.get("$defs", {}), open_values).write(schema)


class _Writer:
    """Translates the JSON schemas of fields, entries of lists and values of maps."""

    def __init__(self, definitions: dict[str, Schema], open_values: bool) -> None:
        self._definitions = definitions
        self._open_values = open_values
        self._models = models_by_name()

    def write(self, schema: Schema) -> Schema:
        """Translate one field, with its description and default."""
        value = without_null(schema)
        reference = value.get("$ref") or _open_enumeration(value)
        target = self._definitions[reference.rpartition("/")[2]] if reference else value
        description = _description(schema, target)
        written: Schema = {"description": description} if description else {}
        written |= self._value(target)
        # An absent default stays absent: null would be a value of its own.
        default = schema.get("default")
        if default is not None:
            assert value is schema, "null is another value than the default: apply cannot say it"
            written["default"] = {} if "properties" in target else default
        return written

    def _value(self, schema: Schema) -> Schema:
        if INT_OR_STRING in schema:
            number, word = schema["anyOf"]
            return {INT_OR_STRING: True, **_limits(number), **_bounds(word)}
        if "anyOf" in schema:
            return _untyped(schema["anyOf"])
        kind = schema["type"]
        if "enum" in schema or "const" in schema:
            if self._open_values:
                return dict(OPEN_VALUE)
            return {"type": kind, "enum": schema.get("enum") or [schema["const"]]}
        match kind:
            case "integer" | "number":
                return {"type": kind, "format": _format(schema), **_limits(schema)}
            case "array":
                return self._list(schema)
            case "object":
                return self._object(schema) if "properties" in schema else self._map(schema)
            case _:
                return {"type": kind, **_bounds(schema)}

    def _object(self, schema: Schema) -> Schema:
        written: Schema = {"type": "object"}
        if ANY_CONTENT in schema:
            return written | {ANY_CONTENT: True}
        if "required" in schema:
            written["required"] = list(schema["required"])
        written["properties"] = {
            name: self.write(field) for name, field in schema["properties"].items()
        }
        return _with_rules(written, self._models[schema["title"]].all_validations())

    def _list(self, schema: Schema) -> Schema:
        entry = schema["items"]
        model = self._models.get(entry.get("$ref", "").rpartition("/")[2])
        written = {"type": "array", **_bounds(schema), "items": self.write(entry)}
        if model in LIST_KEYS:
            keys = {"x-kubernetes-list-map-keys": [LIST_KEYS[model]]}
            return written | {"x-kubernetes-list-type": "map"} | keys
        return written | {"x-kubernetes-list-type": "atomic"}

    def _map(self, schema: Schema) -> Schema:
        values = [*schema.get("patternProperties", {}).values()]
        entry = self.write(values[0] if values else schema["additionalProperties"])
        written = {"type": "object", **_bounds(schema), "additionalProperties": entry}
        # CEL does not see maps of untyped values; only the models check their keys.
        return _with_rules(written, _key_rules(schema) if "type" in entry else [])


# The reference to the enumeration of a field that also accepts other words.
def _open_enumeration(schema: Schema) -> str | None:
    references = [option["$ref"] for option in schema.get("anyOf", []) if "$ref" in option]
    return references[0] if references else None


def _description(field: Schema, target: Schema) -> str:
    """Description of the field, or else of its type, followed by the values of an enumeration."""
    texts = [field.get("description") or target.get("description") or ""]
    enumeration = find_enumeration(str(target.get("title"))) if "enum" in target else None
    for member in enum_members(enumeration) if enumeration else ():
        texts.append(f"{member.value}: {member.description}")
    return " ".join(" ".join(texts).split())


def _format(schema: Schema) -> str:
    if schema["type"] == "number":
        return "double"
    return "int32" if schema["maximum"] < 2**31 else "int64"


def _limits(schema: Schema) -> Schema:
    """Limits of a number; exclusive ones are marked by booleans, as in OpenAPI 3.0."""
    # The API server keeps limits as float64, which would round the largest int64 up to a number
    # beyond int64. The format states that limit already.
    limits: Schema = {}
    for side in ("minimum", "maximum"):
        exclusive = f"exclusive{side.capitalize()}"
        if side in schema and abs(schema[side]) <= 2**53:
            limits[side] = schema[side]
        elif exclusive in schema:
            limits |= {side: schema[exclusive], exclusive: True}
    return limits


def _untyped(options: Sequence[Schema]) -> Schema:
    """Any string, number or boolean; a list, too, if an option is one."""
    assert all(option["type"] != "object" for option in options)
    (text_bounds,) = (_bounds(option) for option in options if option["type"] == "string")
    lists = [_bounds(option) for option in options if option["type"] == "array"]
    # The entries of a list stay unchecked here: they have no single type, either.
    size = {"minItems": 0} | lists[0] if lists else {}
    return _PLAIN_VALUE | text_bounds | size


# Limits on the size of a text, list or map, and the pattern of a text.
def _bounds(schema: Schema) -> Schema:
    texts = ("format", "pattern", "minLength", "maxLength")
    sizes = ("minItems", "maxItems", "minProperties", "maxProperties")
    return {word: schema[word] for word in (*texts, *sizes) if word in schema}


def _key_rules(schema: Schema) -> list[Rule]:
    names = schema.get("propertyNames", {})
    checks = [f"key.size() >= {names['minLength']}"] if "minLength" in names else []
    checks += [f"key.size() <= {names['maxLength']}"] if "maxLength" in names else []
    checks += [f"key.matches({text(pattern)})" for pattern in schema.get("patternProperties", {})]
    if not checks:
        return []
    holds = f"self.all(key, {' && '.join(checks)})"
    return [
        Rule(holds, "a key that is not allowed here", "rename it", allowed=describe_keys(schema))
    ]


def _with_rules(schema: Schema, rules: Sequence[Rule]) -> Schema:
    documents = [rule.document() for rule in rules if rule.holds]
    return schema | ({"x-kubernetes-validations": documents} if documents else {})
