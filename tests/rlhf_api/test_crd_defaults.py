"""The CRD's defaults: valid as the API server checks them, and the same as the models'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.reading.manifest import load_file, load_jobs
from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.status import RLHFJobStatus

from .admission import admit, drop_unknown, fill_in, root_schema, wrong_types
from .rules import broken_rules
from .test_crd_schema import nodes

MANIFESTS = [
    *sorted((Path(__file__).parent / "manifests").glob("*.yaml")),
    *sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")),
]
DEFAULTS = {path: node for path, node in nodes(root_schema()) if "default" in node}


@pytest.mark.parametrize("path", DEFAULTS)
def test_a_default_is_valid_as_it_stands(path: str) -> None:
    """The API server checks each by itself, before the defaults of its own fields are filled in."""
    schema = DEFAULTS[path]
    default: Any = schema["default"]
    assert [*drop_unknown(schema, default)] == []
    assert [*wrong_types(schema, default)] == []
    assert [*broken_rules(schema, default)] == []
    assert default != {} or schema["type"] == "object"


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_a_stored_manifest_has_the_models_values(file: Path) -> None:
    (job,) = load_file(file)
    written = {"apiVersion": job.api_version, "kind": job.kind, "metadata": {"name": job.name}}
    given = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    stored = admit(written | {"spec": given})
    assert not stored.is_refused and not stored.dropped
    whole = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert stored.document["spec"] == with_pods_as_written(whole, given)
    assert RLHFJobSpec.model_validate(stored.document["spec"]) == job.spec


def with_pods_as_written(whole: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """A spec as it is stored: pods are of any content there, and so without defaults."""
    resources, own = whole["resources"], written.get("resources", {})
    pools = zip(resources["nodePools"], own.get("nodePools", ()), strict=True)
    stored = [{**pool, "pod": mine.get("pod", {})} for pool, mine in pools]
    pods = {name: own.get(name, {}) for name in ("pod", "headPod")}
    return {**whole, "resources": {**resources, "nodePools": stored, **pods}}


def test_null_is_dropped_and_what_is_off_stays_off() -> None:
    text = (Path(__file__).parent / "manifests" / "smallest.yaml").read_text("utf-8")
    (job,) = load_jobs(f"{text}  checkpoint: {{keepBest: None, storage: null}}\n", "job.yaml")
    whole = job.model_dump(mode="json", by_alias=True)
    stored = admit(whole)
    assert not stored.is_refused
    assert stored.document["spec"]["checkpoint"]["keepBest"] == "None"
    assert "storage" not in stored.document["spec"]["checkpoint"]
    again, problems = validate_document(stored.manifest)
    assert problems == []
    assert again is not None and again.spec == job.spec


def test_a_job_without_status_has_the_models_one() -> None:
    status: dict[str, Any] = {"status": {}}
    fill_in(root_schema(), status)
    for name in ("artifacts", "phaseSeconds"):
        assert status["status"].pop(name) == {}
    model = RLHFJobStatus().model_dump(mode="json", by_alias=True, exclude_none=True)
    assert status["status"] == {name: value for name, value in model.items() if value != {}}
