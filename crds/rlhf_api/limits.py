"""The limits of a JSON schema in words."""

from __future__ import annotations

from typing import Any

from rlhf_api.base import PATTERN_WORDS, QUANTITY_PATTERN
from rlhf_api.quantity import INT_OR_STRING

Schema = dict[str, Any]


def without_null(schema: Schema) -> Schema:
    """The schema of an optional field's value; any other schema unchanged."""
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    return options[0] if len(options) == 1 else schema


def describe_allowed(schema: Schema) -> str:
    """Describe the allowed values, such as `an integer from 1 to 64`. Empty for objects."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return str(values[0]) if len(values) == 1 else "one of " + ", ".join(map(str, values))
    if INT_OR_STRING in schema:
        return PATTERN_WORDS[QUANTITY_PATTERN]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(describe_allowed(option) for option in schema["anyOf"]))
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "integer":
            return f"an integer {_range(schema)}".strip()
        case "number":
            return f"a number {_range(schema)}".strip()
        case "string":
            return _text(schema)
        case "array":
            return _size("a list of", schema.get("minItems"), schema.get("maxItems"), "entries")
        case "object" if "properties" not in schema:
            return _map(schema)
        case _:
            return ""


def describe_keys(schema: Schema) -> str:
    """Describe the allowed keys of a map; empty for other schemas."""
    keys = schema.get("propertyNames")
    if keys is None:
        return ""
    # pydantic states the pattern of a map's keys by patternProperties.
    patterns = [*schema.get("patternProperties", {}), None]
    return _text({**keys, "pattern": patterns[0]})


def _range(schema: Schema) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"from {low:.12g} to {high:.12g}"
    words = ("of at least", "greater than", "at most", "less than")
    bounds = zip(words, (low, above, high, below), strict=True)
    return " and ".join(f"{word} {bound:.12g}" for word, bound in bounds if bound is not None)


def _text(schema: Schema) -> str:
    size = _size("a text of", schema.get("minLength"), schema.get("maxLength"), "characters")
    pattern = schema.get("pattern")
    return f"{size}: {PATTERN_WORDS[pattern]}" if pattern in PATTERN_WORDS else size


def _map(schema: Schema) -> str:
    return _size("a map of", schema.get("minProperties"), schema.get("maxProperties"), "entries")


def _size(noun: str, low: int | None, high: int | None, unit: str) -> str:
    if high is None:
        return f"{noun} any number of {unit}" if not low else f"{noun} at least {low} {unit}"
    return f"{noun} {low} to {high} {unit}" if low else f"{noun} at most {high} {unit}"
