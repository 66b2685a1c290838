"""Arguments of a call against the JSON schema of a tool's parameters.

A value of another type is converted where nothing is lost: "3" and 3.0 are the integer 3, the
integer 3 is the text "3", "[1]" is a list. Schema keywords other than type, enum, const, anyOf,
oneOf, nullable, items, properties, required and additionalProperties are not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rlhf_runtime.data.tool_calls.json_values import (
    CallProblem,
    checked_value,
    decode_json,
    quoted,
)

JsonSchema = Mapping[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = frozenset({"null", "none", "None"})
# A tool with parameters of its own choice says so.
_NOTHING_MORE = False
_NULL: JsonSchema = MappingProxyType({"type": "null"})


def fitting_arguments(
    arguments: Mapping[str, Any], schema: JsonSchema, path: str = ""
) -> dict[str, Any]:
    """Return arguments as the schema wants them.

    Args:
        arguments: JSON values by name.
        schema: of an object with properties.
        path: of the object within the arguments, for messages; empty: the arguments themselves.

    Raises:
        CallProblem: an argument is missing or unknown, or its value does not fit.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    further = schema.get("additionalProperties", _NOTHING_MORE)
    fitting = {}
    for name, value in arguments.items():
        if name in properties:
            fitting[name] = _fitting(value, properties[name], _join(path, name))
        elif further is False:
            allowed = ", ".join(properties) or "none"
            raise CallProblem(
                f"argument {quoted(_join(path, name))} is not known; the arguments are: {allowed}"
            )
        else:
            inner = further if isinstance(further, Mapping) else {}
            fitting[name] = _fitting(value, inner, _join(path, name))
    for name in schema.get("required", ()):
        if name not in arguments:
            raise CallProblem(f"argument {quoted(_join(path, name))} is missing")
    return fitting


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fitting(value: Any, schema: Any, path: str) -> Any:
    """Return a value as its schema wants it; for errors see `fitting_arguments`."""
    if not isinstance(schema, Mapping):
        return value
    choices = _alternatives(schema)
    if choices is None:
        return value
    # A value of the right type stays as it is, whatever it could be converted to.
    exact = [choice for choice in choices if _is_type(value, choice.get("type"))]
    candidates = exact or choices
    problem: CallProblem | None = None
    for choice in candidates:
        try:
            return _of_type(value, choice, path)
        except CallProblem as error:
            problem = problem or error
    if len(candidates) == 1 and problem is not None:
        raise problem
    names = " or ".join(
        dict.fromkeys(str(choice.get("type", "another value")) for choice in choices)
    )
    raise CallProblem(f"argument {quoted(path)} must be {names}, got {quoted(value)}")


def _alternatives(schema: JsonSchema) -> list[JsonSchema] | None:
    """Return the schemas of which a value must fit one; None: they cannot be checked."""
    options = _options(schema)
    # OpenAPI's keyword, which stands in schemas of hints such as `int | None`.
    return [*options, _NULL] if options is not None and schema.get("nullable") is True else options


def _options(schema: JsonSchema) -> list[JsonSchema] | None:
    for keyword in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(keyword), list):
            lists = [_alternatives(option) for option in options if isinstance(option, Mapping)]
            return [one for many in lists for one in many or [{}]]
    types = schema.get("type")
    if isinstance(types, list):
        return [{**schema, "type": name} for name in types]
    if isinstance(types, str) or "enum" in schema or "const" in schema:
        return [schema]
    return None


def _is_type(value: Any, name: Any) -> bool:
    match name:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return True


def _of_type(value: Any, schema: JsonSchema, path: str) -> Any:
    """Return a value as a schema with one type wants it; for errors see `fitting_arguments`."""
    name = schema.get("type")
    if not _is_type(value, name):
        value = _converted(value, name, path)
    allowed = (
        schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    )
    if allowed is not None and not any(_is_same(value, option) for option in allowed):
        raise CallProblem(
            f"argument {quoted(path)} must be one of {quoted(allowed)}, got {quoted(value)}"
        )
    if isinstance(value, list):
        items = schema.get("items")
        return [_fitting(item, items, f"{path}[{number}]") for number, item in enumerate(value)]
    # Without properties the object is a map of any names.
    if isinstance(value, dict) and "properties" in schema:
        return fitting_arguments(value, schema, path)
    if isinstance(value, dict) and isinstance(further := schema.get("additionalProperties"), dict):
        return {key: _fitting(part, further, _join(path, key)) for key, part in value.items()}
    return value


def _is_same(value: Any, option: Any) -> bool:
    return bool(value == option) and isinstance(value, bool) == isinstance(option, bool)


def _converted(value: Any, name: Any, path: str) -> Any:
    """Convert a value to a type without loss; for errors see `fitting_arguments`."""
    convert = _CONVERSIONS.get(name)
    converted = _FAILED if convert is None else convert(value)
    if converted is _FAILED:
        raise CallProblem(f"argument {quoted(path)} must be {name}, got {quoted(value)}")
    return converted


_FAILED = object()


def _to_integer(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(text := value.strip()):
        return int(text)
    return _FAILED


def _to_number(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        if _INTEGER.fullmatch(text):
            return int(text)
        if _NUMBER.fullmatch(text) and abs(number := float(text)) < float("inf"):
            return number
    return _FAILED


def _to_string(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return json.dumps(value) if is_number else _FAILED


def _to_boolean(value: Any) -> Any:
    return _BOOLEANS.get(value.strip(), _FAILED) if isinstance(value, str) else _FAILED


def _to_null(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip() in _NULLS else _FAILED


def _to_container(kind: type[Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return _FAILED
        decoded, end = decode_json(value)
        is_kind = isinstance(decoded, kind) and end == len(value)
        return checked_value(decoded) if is_kind else _FAILED

    return convert


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "integer": _to_integer,
    "number": _to_number,
    "string": _to_string,
    "boolean": _to_boolean,
    "null": _to_null,
    "array": _to_container(list),
    "object": _to_container(dict),
}
