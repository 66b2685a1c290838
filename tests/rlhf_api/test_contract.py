"""What holds for every model of the contract: frozen, closed, bounded, described."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import rlhf_api
from rlhf_api.base import PATTERN_WORDS, Contract
from rlhf_api.enum_members import enum_members
from rlhf_api.reading.fields import all_fields, contract
from rlhf_api.reading.manifest import load_file
from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.validation import validate_document
from rlhf_api.report import StatusReport
from rlhf_api.spec.checkpoint import PersistentVolumeClaim
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.stopping import StopReason
from rlhf_api.status import RLHFJobStatus

from .rule_cases import CREATED, GOOD

MANIFESTS = Path(__file__).parent / "manifests"
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(rlhf_api.__path__, "rlhf_api.")
]
MODELS = sorted(
    {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Contract) and value is not Contract
    },
    key=lambda model: model.__name__,
)
ENUMERATIONS = sorted(
    {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
    },
    key=lambda enumeration: enumeration.__name__,
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_frozen_closed_and_described(model: type[Contract]) -> None:
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} has no docstring"
        assert field.description.endswith("."), f"{model.__name__}.{name}: no sentence"


@pytest.mark.parametrize("enumeration", ENUMERATIONS, ids=lambda each: each.__name__)
def test_every_value_of_an_enumeration_is_described(enumeration: type[StrEnum]) -> None:
    assert [member.value for member in enum_members(enumeration)] == [*enumeration]
    assert all(member.description for member in enum_members(enumeration))


@pytest.mark.parametrize("enumeration", ENUMERATIONS, ids=lambda each: each.__name__)
def test_values_are_written_as_kubernetes_writes_them(enumeration: type[StrEnum]) -> None:
    values = {each.value for each in enumeration} - {"float32", "bfloat16"}
    assert [value for value in values if not re.fullmatch("[A-Z][A-Za-z0-9]*", value)] == []


def unbounded(node: Any, path: str) -> Iterator[str]:
    """Paths in a JSON schema of texts, lists and maps without a largest size."""
    if isinstance(node, list):
        for index, each in enumerate(node):
            yield from unbounded(each, f"{path}/{index}")
    if not isinstance(node, dict):
        return
    closed = "enum" in node or "const" in node
    needed = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}
    kind = node.get("type")
    bound = needed.get(kind) if isinstance(kind, str) else None
    is_model = node.get("type") == "object" and "properties" in node
    if bound and not closed and not is_model and bound not in node:
        yield f"{path}: no {bound}"
    is_user_value = "parameters" in path or "chatTemplateArguments" in path
    if node.get("type") == "integer" and not closed and not is_user_value:
        for side in ("minimum", "maximum"):
            if side not in node and f"exclusive{side.capitalize()}" not in node:
                yield f"{path}: no {side}"
    names = node.get("propertyNames")
    if names is not None and "maxLength" not in names:
        yield f"{path}: keys without maxLength"
    for key, value in node.items():
        if key not in ("default", "examples", "propertyNames"):
            yield from unbounded(value, f"{path}/{key}")


@pytest.mark.parametrize("model", [RLHFJob, RLHFJobStatus, StatusReport])
def test_every_text_list_map_and_integer_is_bounded(model: type[Contract]) -> None:
    schema = model.model_json_schema(by_alias=True)
    assert [*unbounded(schema, model.__name__)] == []


def test_every_pattern_is_explained_in_words() -> None:
    def patterns(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            yield from node.get("patternProperties", {})
            for value in node.values():
                yield from patterns(value)
        elif isinstance(node, list):
            for each in node:
                yield from patterns(each)

    assert set(patterns(RLHFJob.model_json_schema(by_alias=True))) == set(PATTERN_WORDS)


@pytest.mark.parametrize(
    ("path", "is_inside"),
    [
        *(
            (path, True)
            for path in ("a", "a/b/", "a//b", ".", ".a", "..a", "a/..b", "a/...", "ä b")
        ),
        *((path, False) for path in ("", "/a", "..", "../a", "a/..", "a/../b", "a//..", "./..")),
    ],
)
def test_a_folder_of_a_claim_does_not_lead_out_of_it(path: str, is_inside: bool) -> None:
    document = {"claimName": "shared", "subPath": path}
    try:
        PersistentVolumeClaim.model_validate(document)
    except ValidationError as error:
        assert not is_inside and "subPath" in str(error)
    else:
        assert is_inside


def test_a_password_in_an_address_is_refused_and_not_told() -> None:
    job = apply_overrides(GOOD, CREATED["a password in an address"].changes)
    _, problems = validate_document(job)
    (problem,) = problems
    assert "secretName" in str(problem) and "secret@" not in str(problem)


def test_a_loaded_job_cannot_be_changed() -> None:
    (job,) = load_file(MANIFESTS / "smallest.yaml")
    with pytest.raises(ValidationError, match="frozen"):
        job.spec.rollout.temperature = 2.0  # type: ignore[misc]


def test_wire_names_are_camel_case_and_unique_at_each_level() -> None:
    for field in all_fields(contract()):
        assert "_" not in field.name
        # Keys of rollout.onStop are stop reasons, which are values.
        assert field.name[:1].islower() or field.name in list(StopReason)


def test_the_contract_needs_only_pydantic_and_yaml() -> None:
    names = ", ".join(f"{module.__name__}" for module in MODULES)
    heavy = ["torch", "ray", "vllm", "transformers", "numpy", "typer", "rich", "kubernetes", "kopf"]
    code = f"import sys, {names}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
