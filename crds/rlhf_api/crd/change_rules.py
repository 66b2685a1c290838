"""What may change in a job's spec and when, for the API server: derived from `changes`.

The rules lie at the spec: a rule at a field is not checked when the field comes or goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf_api.cel import member
from rlhf_api.changes import MUTABLE_ON_RESUME, MUTABLE_WHILE_RUNNING
from rlhf_api.limits import Schema
from rlhf_api.rules import Rule

_Pattern = Sequence[str]


def change_rules(spec: Schema) -> list[Rule]:
    """The rules for updates of a spec, one for each section or part of one.

    Args:
        spec: the Kubernetes schema of the spec.
    """
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
            holds=f"self.suspend || oldSelf.suspend || {_unchanged(spec, pattern.split('.'))}",
            what=f"spec.{pattern} can change only while the job is suspended",
            do="write suspend: true first, or with the same change",
            field=f".{pattern.partition('.*')[0]}",
            reason="FieldValueForbidden",
        )
        for pattern in MUTABLE_ON_RESUME
        if pattern not in MUTABLE_WHILE_RUNNING
    ]


def _below(section: str, patterns: Sequence[str]) -> list[_Pattern]:
    """The patterns of a section, without its own name."""
    parts = [pattern.split(".") for pattern in patterns]
    return [names[1:] for names in parts if names[0] == section]


def _fixed(section: str) -> str:
    parts = [pattern for pattern in MUTABLE_ON_RESUME if pattern.startswith(f"{section}.")]
    but = f", but for {', '.join(parts)}" if parts else ""
    return f"spec.{section} cannot change{but}"


def _unchanged(schema: Schema, path: _Pattern, new: str = "self", old: str = "oldSelf") -> str:
    """The condition that nothing at a path changed, `*` in it standing for every name of a map, or
    every entry of a list."""
    name, rest = path[0], path[1:]
    if name == "*" and "items" in schema:
        return _of_entries(schema, new, old, _unchanged(schema["items"], rest, "entry", "before"))
    if name == "*":
        held = _unchanged(schema["additionalProperties"], rest, f"{new}[key]", f"{old}[key]")
        return f"{new}.all(key, !(key in {old}) || {held})"
    if not rest:
        return _same(schema, new, old, name, [])
    mine, others = member(new, name), member(old, name)
    held = _unchanged(schema["properties"][name], rest, mine, others)
    return held if _is_always_there(schema, name) else f"!has({mine}) || !has({others}) || ({held})"


def _of_entries(schema: Schema, new: str, old: str, held: str) -> str:
    """The condition that something holds of every entry of a list and that of its name before."""
    (key,) = schema["x-kubernetes-list-map-keys"]
    other = f"{member('before', key)} != {member('entry', key)}"
    return f"{new}.all(entry, {old}.all(before, {other} || ({held})))"


def _same(owner: Schema, new: str, old: str, name: str, but: Sequence[_Pattern]) -> str:
    """The condition that a field of an object is the same, but for what some patterns cover."""
    mine, others = member(new, name), member(old, name)
    schema = owner["properties"][name]
    equal = " && ".join(_equal(schema, mine, others, but))
    if _is_always_there(owner, name):
        return equal
    return f"has({mine}) == has({others}) && (!has({mine}) || !has({others}) || ({equal}))"


def _is_always_there(owner: Schema, name: str) -> bool:
    field = owner["properties"][name]
    return name in owner.get("required", []) or "default" in field


def _equal(schema: Schema, new: str, old: str, but: Sequence[_Pattern]) -> Iterator[str]:
    """Conditions that together say that two values are the same, but for some patterns."""
    if "x-kubernetes-list-map-keys" in schema:  # their equality ignores the order
        (key,) = schema["x-kubernetes-list-map-keys"]
        names = f"map(entry, {member('entry', key)})"
        yield f"{new}.{names} == {old}.{names}"
    if not but:
        yield f"{new} == {old}"
    elif "additionalProperties" in schema:
        inner = [pattern[1:] for pattern in but]
        values = _equal(schema["additionalProperties"], f"{new}[key]", f"{old}[key]", inner)
        yield f"{old}.all(key, key in {new})"
        yield f"{new}.all(key, key in {old} && {' && '.join(values)})"
    elif "items" in schema:
        inner = [pattern[1:] for pattern in but]
        values = _equal(schema["items"], "entry", "before", inner)
        yield _of_entries(schema, new, old, " && ".join(values))
    else:
        for name in schema["properties"]:
            if [name] not in but:
                inner = [pattern[1:] for pattern in but if pattern[0] == name]
                yield _same(schema, new, old, name, inner)
