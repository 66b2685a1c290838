"""The schema keeps Kubernetes' rules for structural schemas, and every bound and description."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import re2

from rlhf_api.base import QUANTITY_PATTERN
from rlhf_api.crd.structural import structural_schema
from rlhf_api.spec.job import RLHFJobSpec

from .admission import root_schema

Schema = dict[str, Any]

WORDS = {
    *("type", "format", "description", "default", "nullable", "enum", "required", "properties"),
    *("additionalProperties", "items", "minimum", "maximum", "pattern"),
    *("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties", "x-kubernetes-validations", "x-kubernetes-list-type"),
    *("x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields"),
    "x-kubernetes-int-or-string",
}
"""All that the schema is made of; no $ref, no definitions, no anyOf, no patternProperties."""
TYPES = ("object", "array", "string", "integer", "number", "boolean")
AT_THE_ROOT = {"description", "type", "required", "properties", "x-kubernetes-validations"}
"""What Kubernetes lets the root have where there is a status subresource, and we use."""


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below a schema, with its path."""
    yield path or "root", schema
    for name, each in schema.get("properties", {}).items():
        yield from nodes(each, f"{path}.{name}".lstrip("."))
    for word, mark in (("items", "[]"), ("additionalProperties", "[*]")):
        if word in schema:
            yield from nodes(schema[word], f"{path}{mark}")


def unstructural(path: str, node: Schema) -> Iterator[str]:
    """What keeps a schema from being structural."""
    yield from (f"{path}: {word} is not allowed" for word in node.keys() - WORDS)
    marks = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
    is_open = any(node.get(mark) is True for mark in marks)
    if "type" not in node and not is_open:
        yield f"{path}: no type"
    if "type" in node and node["type"] not in TYPES:
        yield f"{path}: type {node['type']}"
    if node.get("type") == "array" and not isinstance(node.get("items"), dict):
        yield f"{path}: items is not one schema"
    if "properties" in node and "additionalProperties" in node:
        yield f"{path}: properties beside additionalProperties"
    if isinstance(node.get("additionalProperties"), bool):
        yield f"{path}: additionalProperties is no schema"
    if not {*node.get("required", [])} <= {*node.get("properties", {})}:
        yield f"{path}: requires what it does not have"
    if "required" in node and any(
        "default" in node["properties"][name] for name in node["required"]
    ):
        yield f"{path}: requires what has a default"


def unbounded(path: str, node: Schema) -> Iterator[str]:
    """Texts, lists, maps and integers without a largest size; int64 is one by itself."""
    needed = {"string": ["maxLength"], "array": ["maxItems"], "integer": ["minimum", "maximum"]}
    if node.get("format") == "int64":
        needed["integer"] = ["minimum"]
    words = needed.get(node.get("type", ""), [])
    if "additionalProperties" in node:
        words = ["maxProperties"]
    if "type" not in node:
        is_quantity = "x-kubernetes-int-or-string" in node
        words = ["maxLength"] if is_quantity else ["maxLength", "maxItems", "maxProperties"]
    yield from (f"{path}: no {word}" for word in words if word not in node and "enum" not in node)


def badly_keyed(path: str, node: Schema) -> Iterator[str]:
    """Lists whose type or keys Kubernetes would not take."""
    kind, keys = node.get("x-kubernetes-list-type"), node.get("x-kubernetes-list-map-keys", [])
    if (node.get("type") == "array") != (kind is not None):
        yield f"{path}: a list without a type, or another thing with one"
    if (kind == "map") != bool(keys):
        yield f"{path}: a map without keys, or a list with them"
    for key in keys:
        held = node["items"]
        field = held["properties"].get(key, {})
        if field.get("type") not in ("string", "integer", "boolean") or "nullable" in field:
            yield f"{path}: {key} cannot be a key"
        if key not in held.get("required", []) and "default" not in field:
            yield f"{path}: {key} may be missing"


def of_wrong_format(path: str, node: Schema) -> Iterator[str]:
    """Numbers of too small a format, patterns that Go lacks, exclusive limits that are no flags."""
    largest = {"int32": 2**31 - 1, "int64": 2**53, "double": 2**53}
    for limit in (node[side] for side in ("minimum", "maximum") if side in node):
        # The API server keeps limits as float64, and cuts them to int64 for values that are whole.
        if limit != int(limit) or abs(limit) > largest[node.get("format", "int64")]:
            yield f"{path}: a limit that the API server does not keep: {limit}"
    if node.get("type") == "integer" and node.get("format") not in ("int32", "int64"):
        yield f"{path}: an integer of no format"
    if node.get("type") == "number" and node.get("format") != "double":
        yield f"{path}: a number that is no double"
    for side in ("minimum", "maximum"):
        exclusive = node.get(f"exclusive{side.capitalize()}", True)
        if exclusive is not True or (f"exclusive{side.capitalize()}" in node and side not in node):
            yield f"{path}: exclusive {side} is a flag beside {side}"
    if "pattern" in node and not same_everywhere(node["pattern"]):
        yield f"{path}: a pattern that Go does not read, or not in the same way"


def same_everywhere(pattern: str) -> bool:
    """Whether a pattern means the same to Go (as RE2 reads it) and to the models.

    A digit or letter of other scripts is one for the models' expressions, for Go's it is not.
    """
    try:
        re2.compile(pattern)
    except re2.error:
        return False
    return re.search(r"\\[wdsb]", pattern) is None


@pytest.mark.parametrize("check", [unstructural, unbounded, badly_keyed, of_wrong_format])
def test_every_part_of_the_schema_is_sound(check: Callable[[str, Schema], Iterator[str]]) -> None:
    assert [fault for path, node in nodes(root_schema()) for fault in check(path, node)] == []


def test_the_root_has_only_what_a_root_may_have() -> None:
    root = root_schema()
    assert root.keys() <= AT_THE_ROOT
    metadata = root["properties"]["metadata"]
    assert metadata.keys() == {"type", "properties"}
    assert metadata["properties"].keys() == {"name", "generateName"}
    assert root["required"] == ["spec"]


def test_every_field_is_described() -> None:
    for path, node in nodes(root_schema()):
        for name, field in node.get("properties", {}).items():
            if "metadata" not in (path, name):
                assert field["description"].endswith("."), f"{path}.{name}"


def test_the_values_of_an_enumeration_are_described_with_their_field() -> None:
    spec = structural_schema(RLHFJobSpec)
    described = spec["properties"]["placement"]["properties"]["type"]["description"]
    assert described.endswith(
        "Standalone: Every role with a model has its own devices. "
        "Manual: `groups` assigns devices to roles or to some of their calls. Groups without a "
        "common device run at the same time."
    )


def test_a_status_may_say_what_no_list_has() -> None:
    schema = dict(nodes(root_schema()))
    assert [path for path, node in schema.items() if "enum" in node and "status" in path] == []
    phase = schema["status.phase"]
    assert (phase["type"], phase["maxLength"], phase["default"]) == ("string", 63, "Pending")
    assert "Running: Its driver runs." in phase["description"]
    assert schema["status.conditions[].type"]["type"] == "string"
    assert schema["spec.resources.nodePools[].device"]["enum"] == ["GPU", "CPU"]


def test_null_never_means_anything_else_than_a_field_left_out() -> None:
    assert [path for path, node in nodes(root_schema()) if "nullable" in node] == []


def test_only_parameters_and_settings_of_user_code_are_without_type() -> None:
    untyped = [
        path
        for path, node in nodes(root_schema())
        if "type" not in node and "x-kubernetes-int-or-string" not in node
    ]
    assert untyped == [
        "spec.algorithm.custom.parameters[*]",
        "spec.algorithm.graph.calls[].train.loss.settings[*]",
        "spec.algorithm.graph.calls[].train.auxiliary[].settings[*]",
        "spec.algorithm.graph.calls[].compute[].settings[*]",
        "spec.rollout.environment.parameters[*]",
        "spec.rewards[].function.parameters[*]",
        "spec.rewards[].http.parameters[*]",
        "spec.rewards[].judge.parameters[*]",
        "spec.rewards[].judge.chatTemplateArguments[*]",
        "spec.data.train.reasoningGym.parameters[*]",
        "spec.data.train.chatTemplateArguments[*]",
        "spec.data.train.sources[].reasoningGym.parameters[*]",
        "spec.data.train.sources[].chatTemplateArguments[*]",
        "spec.data.pretraining.reasoningGym.parameters[*]",
        "spec.data.pretraining.chatTemplateArguments[*]",
        "spec.data.evaluation.reasoningGym.parameters[*]",
        "spec.data.evaluation.chatTemplateArguments[*]",
        "spec.data.evaluation.sources[].reasoningGym.parameters[*]",
        "spec.data.evaluation.sources[].chatTemplateArguments[*]",
    ]


def test_only_pods_and_the_charts_values_are_of_any_content() -> None:
    # Their models check them: the definition would be too large for `kubectl apply` otherwise.
    open_objects = [
        path
        for path, node in nodes(root_schema())
        if node.get("type") == "object" and node.get("x-kubernetes-preserve-unknown-fields")
    ]
    assert open_objects == [
        "spec.resources.nodePools[].pod",
        "spec.resources.pod",
        "spec.resources.headPod",
        "status.defaults",
    ]


def test_quantities_are_integers_or_texts() -> None:
    for path in ("rollout.kvCacheMemory", "resources.head.cpu", "resources.head.memory"):
        node = dict(nodes(root_schema()))[f"spec.{path}"]
        assert node["x-kubernetes-int-or-string"] and "type" not in node
        assert node["pattern"] == QUANTITY_PATTERN and node["minimum"] == 0


def test_lists_of_what_has_a_unique_name_have_keys() -> None:
    keyed = {
        path: node["x-kubernetes-list-map-keys"]
        for path, node in nodes(root_schema())
        if "x-kubernetes-list-map-keys" in node
    }
    assert keyed == {
        "spec.rewards": ["name"],
        "spec.resources.nodePools": ["name"],
        "status.conditions": ["type"],
    }


def test_rules_about_updates_lie_where_both_values_are_known() -> None:
    """Not inside lists without keys: the API server cannot tell which entry was which."""
    for path, node in nodes(root_schema()):
        for rule in node.get("x-kubernetes-validations", []):
            assert "oldSelf" not in rule["rule"] or path == "spec"


def test_rules_blame_fields_that_there_are() -> None:
    for path, node in nodes(root_schema()):
        for rule in node.get("x-kubernetes-validations", []):
            below = node
            for name in rule.get("fieldPath", "").split(".")[1:]:
                assert name in below["properties"], f"{path}: {rule['fieldPath']}"
                below = below["properties"][name]


@pytest.mark.parametrize(
    ("check", "node", "fault"),
    [
        (unstructural, {"$ref": "#/x"}, "$ref is not allowed"),
        (unstructural, {}, "no type"),
        (unstructural, {"type": ["string", "null"]}, "type ["),
        (unstructural, {"type": "array"}, "items is not one schema"),
        (unstructural, {"type": "object", "additionalProperties": False}, "is no schema"),
        (unbounded, {"type": "string"}, "no maxLength"),
        (unbounded, {"type": "object", "additionalProperties": {}}, "no maxProperties"),
        (badly_keyed, {"type": "array"}, "a list without a type"),
        (of_wrong_format, {"format": "int64", "maximum": 2**63 - 1}, "a limit that the API server"),
        (of_wrong_format, {"format": "double", "minimum": 0.5}, "a limit that the API server"),
        (of_wrong_format, {"type": "integer"}, "no format"),
        (of_wrong_format, {"type": "string", "pattern": "(?=a)"}, "a pattern that Go does not"),
        (of_wrong_format, {"type": "string", "pattern": r"^\w$"}, "a pattern that Go does not"),
    ],
)
def test_the_checks_notice_what_they_are_for(
    check: Callable[[str, Schema], Iterator[str]], node: Schema, fault: str
) -> None:
    assert any(fault in found for found in check("x", node))
