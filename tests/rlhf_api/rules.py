"""Rules in CEL, evaluated as the API server does it: types come from the schema, not the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import celpy
from celpy import celtypes

from rlhf_api.cel_literals import escaped

Schema = dict[str, Any]

_ENVIRONMENT = celpy.Environment()


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold."""

    rule: str
    path: str
    message: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class _KeyedList(celtypes.ListType):
    """A list whose entries have a key: equal to one with the same entries in another order."""

    key = ""

    def __eq__(self, other: Any) -> bool:
        return len(self) == len(other) and self._by_key(self) == self._by_key(other)

    def _by_key(self, entries: Iterable[Any]) -> dict[str, Any]:
        return {str(each[self.key]): each for each in entries}


def broken_rules(schema: Schema, new: Any, old: Any = None, path: str = "") -> Iterator[Broken]:
    """Every rule at a value or below that does not hold; `old` is what it was before an update."""
    if new is None:
        return
    rules = schema.get("x-kubernetes-validations", [])
    variables = {"self": typed(schema, new)} if rules else {}
    if rules and old is not None:
        variables["oldSelf"] = typed(schema, old)
    for rule in rules:
        if "oldSelf" not in rule["rule"] or old is not None:
            yield from _broken(rule, variables, path)
    for name, below, child, was in _children(schema, new, old):
        yield from broken_rules(below, child, was, f"{path}{name}".lstrip("."))


def _broken(rule: dict[str, str], variables: dict[str, Any], path: str) -> Iterator[Broken]:
    if _program(rule["rule"]).evaluate(variables):
        return
    expression = rule.get("messageExpression")
    message = str(_program(expression).evaluate(variables)) if expression else rule["message"]
    if "\n" in message:
        message = rule["message"]
    where = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
    yield Broken(rule["rule"], where, message, rule.get("reason", ""))


def _children(schema: Schema, new: Any, old: Any) -> Iterator[tuple[str, Schema, Any, Any]]:
    """What is below a value: path, schema, new value, and the old one where it can be told."""
    before = old if isinstance(old, dict) else {}
    if "properties" in schema:
        for name, value in new.items():
            if name in schema["properties"]:
                yield f".{name}", schema["properties"][name], value, before.get(name)
    elif "additionalProperties" in schema:
        for name, value in new.items():
            yield f"[{name}]", schema["additionalProperties"], value, before.get(name)
    elif "items" in schema:
        keys = schema.get("x-kubernetes-list-map-keys", [])
        known = {entry[keys[0]]: entry for entry in old or []} if keys else {}
        for index, value in enumerate(new):
            yield f"[{index}]", schema["items"], value, known.get(value[keys[0]] if keys else None)


def typed(schema: Schema, value: Any) -> Any:
    """A value in CEL's types; an object's fields that are null count as missing."""
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {name: each for name, each in value.items() if each is not None}
            return _mapped(
                {escaped(name): typed(schema["properties"][name], fields[name]) for name in fields}
            )
        case "object" if "additionalProperties" not in schema:
            return celpy.json_to_cel(value)  # of any content
        case "object":
            held = schema["additionalProperties"]
            return _mapped({name: typed(held, each) for name, each in value.items()})
        case "array":
            entries = [typed(schema["items"], each) for each in value]
            if "x-kubernetes-list-map-keys" not in schema:
                return celtypes.ListType(entries)
            keyed = _KeyedList(entries)
            keyed.key = schema["x-kubernetes-list-map-keys"][0]
            return keyed
        case "number":
            return celtypes.DoubleType(value)
        case _:
            return celpy.json_to_cel(value)


def _mapped(values: dict[str, Any]) -> celtypes.MapType:
    return celtypes.MapType({celtypes.StringType(name): each for name, each in values.items()})


@cache
def _program(expression: str) -> Any:
    syntax = _ENVIRONMENT.compile(expression)
    return _ENVIRONMENT.program(syntax, functions={"sum": _sum})


def _sum(numbers: celtypes.ListType) -> celtypes.IntType:
    """Kubernetes' own function."""
    return celtypes.IntType(sum(int(number) for number in numbers))
