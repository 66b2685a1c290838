"""Type hints of tools' arguments: their JSON schema, and JSON values converted to them.

Standard library only.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

SUPPORTED = (
    "str, int, float, bool, list[T], dict[str, T], T | None, unions of these, Literal, Any and an "
    "Enum of texts or whole numbers"
)


class UnsupportedHint(Exception):
    """A hint without a JSON schema; the text names it."""


class DoesNotFit(Exception):
    """A JSON value that a hint does not allow."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A type hint.

    schema: its JSON schema.
    words: what it allows, in plain words.
    read: converts a JSON value, or raises DoesNotFit.
    """

    schema: Mapping[str, Any]
    words: str
    read: Callable[[Any], Any]

    def convert(self, value: Any) -> Any:
        """Convert a JSON value to the hinted type, where this loses nothing.

        Raises:
            DoesNotFit: it is of another type.
        """
        try:
            return self.read(value)
        except DoesNotFit:
            if not isinstance(value, str):
                raise
        # Some formats of calls write all arguments as texts.
        try:
            decoded = json.loads(value)
        except ValueError:
            raise DoesNotFit from None
        return self.read(decoded)


def hint_of(annotation: Any) -> Hint:
    """Return the hint of an annotation.

    Raises:
        UnsupportedHint: it has no JSON schema.
    """
    # A wrong hint may be any object.
    if isinstance(annotation, Hashable) and annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation is Any:
        return Hint({}, "any value", lambda value: value)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is list or origin is list:
        return _list_hint(arguments)
    if annotation is dict or origin is dict:
        return _dict_hint(annotation, arguments)
    if origin is Literal:
        return _choice_hint(annotation, list(arguments), lambda value: value)
    if origin in (Union, types.UnionType):
        return _union_hint(arguments)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice_hint(annotation, [member.value for member in annotation], annotation)
    raise UnsupportedHint(_name_of(annotation))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise DoesNotFit


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise DoesNotFit


def _number(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise DoesNotFit from None
        if number == value:
            return number
    raise DoesNotFit


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise DoesNotFit


_SCALARS: Mapping[Any, Hint] = {
    str: Hint({"type": "string"}, "a text", _text),
    int: Hint({"type": "integer"}, "a whole number", _integer),
    float: Hint({"type": "number"}, "a number", _number),
    bool: Hint({"type": "boolean"}, "true or false", _truth),
}
_JSON_TYPES = {str: "string", int: "integer", bool: "boolean"}


def _list_hint(arguments: tuple[Any, ...]) -> Hint:
    if not arguments:
        return Hint({"type": "array"}, "a list", lambda value: _instance(value, list))
    items = hint_of(arguments[0])

    def read(value: Any) -> list[Any]:
        return [items.read(item) for item in _instance(value, list)]

    return Hint({"type": "array", "items": items.schema}, f"a list ({items.words})", read)


def _dict_hint(annotation: Any, arguments: tuple[Any, ...]) -> Hint:
    if not arguments:
        return Hint({"type": "object"}, "an object", lambda value: _instance(value, dict))
    keys, values = arguments[0], hint_of(arguments[1])
    if keys is not str:
        raise UnsupportedHint(_name_of(annotation))

    def read(value: Any) -> dict[str, Any]:
        return {key: values.read(item) for key, item in _instance(value, dict).items()}

    schema = {"type": "object", "additionalProperties": values.schema}
    return Hint(schema, f"an object ({values.words})", read)


def _instance(value: Any, kind: type) -> Any:
    if isinstance(value, kind):
        return value
    raise DoesNotFit


def _choice_hint(annotation: Any, choices: list[Any], make: Callable[[Any], Any]) -> Hint:
    kinds = {type(choice) for choice in choices}
    if not choices or not kinds <= _JSON_TYPES.keys():
        raise UnsupportedHint(_name_of(annotation))
    schema: dict[str, Any] = {"enum": choices}
    if len(kinds) == 1:
        schema = {"type": _JSON_TYPES[kinds.pop()], "enum": choices}

    def read(value: Any) -> Any:
        # True equals 1, but is another choice.
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return make(value)
        raise DoesNotFit

    return Hint(schema, "one of " + ", ".join(json.dumps(choice) for choice in choices), read)


def _union_hint(arguments: tuple[Any, ...]) -> Hint:
    members = [hint_of(member) for member in arguments if member is not type(None)]
    has_none = len(members) < len(arguments)
    schema = _union_schema([member.schema for member in members])
    if has_none:
        schema = {**schema, "nullable": True}

    def read(value: Any) -> Any:
        if value is None and has_none:
            return None
        for member in members:
            try:
                return member.read(value)
            except DoesNotFit:
                continue
        raise DoesNotFit

    words = [member.words for member in members] + ["null"] * has_none
    return Hint(schema, " or ".join(words), read)


def _union_schema(schemas: list[Mapping[str, Any]]) -> dict[str, Any]:
    if len(schemas) == 1:
        return dict(schemas[0])
    # Chat templates write a list of plain types shorter than alternatives.
    if all(set(schema) == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
