"""CEL rules on changes of a job's spec, derived from `changes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf_api.cel_literals import member
from rlhf_api.changes import MUTABLE_ON_RESUME, MUTABLE_WHILE_RUNNING
from rlhf_api.limits import Schema
from rlhf_api.rules import Rule

_Pattern = Sequence[str]


def change_rules(spec: Schema) -> list[Rule]:
    """The rules for updates of a spec, one for each section or part of one.

    Args:
        spec: the Kubernetes schema of the spec.
    """
    # All rules belong to the spec: the API server does not check a rule of a field that is added or
    # removed.
    rules = [
        Rule(
            holds=_same(spec, "self", "oldSelf", section, _below(section, MUTABLE_ON_RESUME)),
            what=_fixed(section),
            do="change it back, or make a new job",
            field=f".{section}",
            reason="FieldValueForbidden",
        )
        for section in spec["properties"]
        if section not in MUTABLE_ON_RESUME
    ]
    return rules + [
        Rule(
            holds=f"self.suspend || oldSelf.suspend || {_fixed_while_running(spec, pattern)}",
            what=f"spec.{pattern} can change only while the job is suspended"
            f"{_except(pattern, MUTABLE_WHILE_RUNNING)}",
            do="write suspend: true first, or with the same change",
            field=f".{pattern.partition('.*')[0]}",
            reason="FieldValueForbidden",
        )
        for pattern in MUTABLE_ON_RESUME
        if pattern not in MUTABLE_WHILE_RUNNING
    ]


# Patterns below a section, without its name.
def _below(section: str, patterns: Sequence[str]) -> list[_Pattern]:
    parts = [pattern.split(".") for pattern in patterns]
    return [names[1:] for names in parts if names[0] == section]


def _fixed(section: str) -> str:
    return f"spec.{section} cannot change{_except(section, MUTABLE_ON_RESUME)}"


def _except(section: str, patterns: Sequence[str]) -> str:
    parts = [pattern for pattern in patterns if pattern.startswith(f"{section}.")]
    return f", but for {', '.join(parts)}" if parts else ""


def _fixed_while_running(spec: Schema, pattern: str) -> str:
    """CEL: the values of a pattern are unchanged, except for what may change while a job runs."""
    but = [
        names.removeprefix(f"{pattern}.").split(".")
        for names in MUTABLE_WHILE_RUNNING
        if names.startswith(f"{pattern}.")
    ]
    return _unchanged(spec, pattern.split("."), but, "self", "oldSelf")


def _unchanged(schema: Schema, path: _Pattern, but: Sequence[_Pattern], new: str, old: str) -> str:
    """CEL: the values at a path are unchanged, except for what some patterns below it cover; `*`
    stands for every key of a map or entry of a list."""
    name, rest = path[0], path[1:]
    # Only lists with keys: entries of other lists cannot be paired.
    if name == "*" and "items" in schema:
        condition = _unchanged(schema["items"], rest, but, "entry", "before")
        return _for_entries(schema, new, old, condition)
    if name == "*":
        inner = schema["additionalProperties"]
        condition = _unchanged(inner, rest, but, f"{new}[key]", f"{old}[key]")
        return f"{new}.all(key, !(key in {old}) || {condition})"
    if not rest:
        return _same(schema, new, old, name, but)
    mine, others = member(new, name), member(old, name)
    condition = _unchanged(schema["properties"][name], rest, but, mine, others)
    if _is_always_set(schema, name):
        return condition
    return f"!has({mine}) || !has({others}) || ({condition})"


# CEL: a condition holds for every entry of a list and the earlier entry with its key.
def _for_entries(schema: Schema, new: str, old: str, condition: str) -> str:
    (key,) = schema["x-kubernetes-list-map-keys"]
    other = f"{member('before', key)} != {member('entry', key)}"
    return f"{new}.all(entry, {old}.all(before, {other} || ({condition})))"


def _same(owner: Schema, new: str, old: str, name: str, but: Sequence[_Pattern]) -> str:
    """CEL: a field of an object is unchanged, except for what some patterns cover."""
    mine, others = member(new, name), member(old, name)
    schema = owner["properties"][name]
    equal = " && ".join(_equal(schema, mine, others, but))
    if _is_always_set(owner, name):
        return equal
    return f"has({mine}) == has({others}) && (!has({mine}) || !has({others}) || ({equal}))"


def _is_always_set(owner: Schema, name: str) -> bool:
    field = owner["properties"][name]
    return name in owner.get("required", []) or "default" in field


def _equal(schema: Schema, new: str, old: str, but: Sequence[_Pattern]) -> Iterator[str]:
    """Yield CEL conditions for two equal values, except for what some patterns cover."""
    if "x-kubernetes-list-map-keys" in schema:
        # CEL compares such lists without their order, which may not change either.
        (key,) = schema["x-kubernetes-list-map-keys"]
        # So the order of their keys is compared as well.
        names = f"map(entry, {member('entry', key)})"
        yield f"{new}.{names} == {old}.{names}"
    if not but:
        yield f"{new} == {old}"
    elif "additionalProperties" in schema:
        inner = [pattern[1:] for pattern in but]
        values = _equal(schema["additionalProperties"], f"{new}[key]", f"{old}[key]", inner)
        # The same keys on both sides, and equal values for each.
        yield f"{old}.all(key, key in {new})"
        yield f"{new}.all(key, key in {old} && {' && '.join(values)})"
    elif "items" in schema:
        inner = [pattern[1:] for pattern in but]
        values = _equal(schema["items"], "entry", "before", inner)
        # The order of keys is equal by the first condition; compare entry by entry.
        yield _for_entries(schema, new, old, " && ".join(values))
    else:
        for name in schema["properties"]:
            # A field that may change as a whole needs no condition.
            if [name] not in but:
                inner = [pattern[1:] for pattern in but if pattern[0] == name]
                yield _same(schema, new, old, name, inner)
