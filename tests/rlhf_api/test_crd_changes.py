"""The rules about updates agree with `changes`, the one list, on every field of a job."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from rlhf_api.changes import MUTABLE_ON_RESUME, MUTABLE_WHILE_RUNNING, refused_changes
from rlhf_api.crd.change_rules import change_rules
from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.yaml_documents import read_documents

from .admission import admit, root_schema
from .rules import broken_rules
from .test_crd_defaults import MANIFESTS

pytestmark = pytest.mark.slow


def without_rules(node: Any) -> Any:
    """A schema without the rules in it."""
    if not isinstance(node, dict):
        return node
    kept = {name: each for name, each in node.items() if name != "x-kubernetes-validations"}
    return {name: without_rules(each) for name, each in kept.items()}


SPEC = root_schema()["properties"]["spec"]
RULES = [rule.document() for rule in change_rules(SPEC)]
UPDATES = {**without_rules(SPEC), "x-kubernetes-validations": RULES}
"""The spec with nothing but the rules about updates."""

Path = tuple[str | int, ...]


@cache
def stored() -> dict[str, Any]:
    """A spec that says most of what one can say, as it is stored."""
    (full,) = (file for file in MANIFESTS if file.stem == "full")
    (document,) = read_documents(full.read_text("utf-8"))[0]
    more = ("spec.managedBy=someone", "spec.models.critic.training.precision=float32")
    spec: dict[str, Any] = admit(apply_overrides(document.value, more)).document["spec"]
    return spec


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every list and value in a document."""
    if not isinstance(value, dict):
        yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))


def changed(spec: dict[str, Any], path: Path, suspend: bool) -> dict[str, Any]:
    """The spec with another value at a path; a list there is emptied."""
    other = copy.deepcopy(spec) | {"suspend": suspend}
    node: Any = other
    for segment in path[:-1]:
        node = node[segment]
    node[path[-1]] = _another(node[path[-1]])
    return other


def optional(schema: dict[str, Any], value: Any, path: Path = ()) -> Iterator[Path]:
    """Fields of a document that may be missing, and entries of its maps."""
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") and "type" in schema
    if isinstance(value, dict) and is_open:
        yield from ((*path, name) for name in value)
    elif isinstance(value, dict):
        for name, each in value.items():
            field = schema.get("properties", {}).get(name) or schema["additionalProperties"]
            if name not in schema.get("required", []) and "default" not in field:
                yield (*path, name)
            yield from optional(field, each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from optional(schema["items"], each, (*path, index))


def without(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """The spec without a field."""
    other = copy.deepcopy(spec)
    node: Any = other
    for segment in path[:-1]:
        node = node[segment]
    del node[path[-1]]
    return other


def _another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
    return []


def refused(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return any(broken_rules(UPDATES, new, old))


def shown(path: Path) -> str:
    return ".".join(map(str, path))


@pytest.mark.parametrize("path", [*places(stored())], ids=shown)
def test_a_change_is_refused_if_and_only_if_the_list_refuses_it(path: Path) -> None:
    old = stored()
    if path == ("suspend",) or changed(old, path, False) == old:
        return
    for suspend, allowed in ((False, MUTABLE_WHILE_RUNNING), (True, MUTABLE_ON_RESUME)):
        new = changed(old, path, suspend)
        assert refused(old, new) == bool(refused_changes(old, new, allowed)), suspend


@pytest.mark.parametrize("path", [*optional(SPEC, stored())], ids=shown)
def test_so_is_a_field_that_comes_or_goes(path: Path) -> None:
    whole, less = stored(), without(stored(), path)
    for old, new in ((whole, less), (less, whole)):
        assert refused(old, new) == bool(refused_changes(old, new, MUTABLE_WHILE_RUNNING))
        waiting = new | {"suspend": True}
        assert refused(old, waiting) == bool(refused_changes(old, waiting, MUTABLE_ON_RESUME))


def test_the_list_names_fields_that_there_are() -> None:
    for pattern in MUTABLE_ON_RESUME:
        node: dict[str, Any] = SPEC
        for name in pattern.split("."):
            inner = node.get("items") or node.get("additionalProperties")
            node = inner if name == "*" else node["properties"][name]


def test_every_section_has_a_rule_or_may_change() -> None:
    blamed = {str(rule.field).split(".")[1] for rule in change_rules(SPEC)}
    assert blamed == SPEC["properties"].keys() - {*MUTABLE_WHILE_RUNNING}
