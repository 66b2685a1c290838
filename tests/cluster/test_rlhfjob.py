"""A real API server takes the CustomResourceDefinition, and refuses what it has to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.reading.overrides import apply_overrides
from rlhf_operator.config import JobDefaults
from rlhf_operator.parse import parse_job

from ..rlhf_api.rule_cases import ALLOWED, CREATED, GOOD, UPDATED
from .devcluster import CommandFailed
from .kubectl import Kubectl

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
MANIFESTS = [*EXAMPLES, *sorted((ROOT / "tests/rlhf_api/manifests").glob("*.yaml"))]


def refusal(kubectl: Kubectl, namespace: str, verb: str, manifest: dict[str, Any]) -> str:
    """What the API server says against a manifest; empty if it would take it."""
    try:
        kubectl.send(verb, namespace, manifest, "--dry-run=server")
    except CommandFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_taken(defined: Kubectl, namespace: str, manifest: Path) -> None:
    defined("apply", f"--namespace={namespace}", f"--filename={manifest}")
    (job,) = defined.get(namespace, "rlhfjobs")["items"]
    assert job["status"]["phase"] == "Pending" and job["status"]["observedGeneration"] == -1
    assert defined("get", "rlhf", f"--namespace={namespace}").split()[:4] == [
        "NAME",
        "PHASE",
        "STEP",
        "STEPS",
    ]


@pytest.mark.parametrize(
    "verb", ["apply", "apply --server-side", "create"], ids=["client-side", "server-side", "create"]
)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_operator_reads_examples_however_they_are_sent(
    defined: Kubectl, namespace: str, example: Path, verb: str
) -> None:
    defined(*verb.split(), f"--namespace={namespace}", f"--filename={example}")
    (raw,) = defined.get(namespace, "rlhfjobs")["items"]
    seen = parse_job(raw, JobDefaults())
    assert seen.problem is None and seen.job is not None


@pytest.mark.parametrize("name", list(CREATED))
def test_what_is_wrong_is_refused_in_words(defined: Kubectl, namespace: str, name: str) -> None:
    case = CREATED[name]
    said = refusal(defined, namespace, "create", apply_overrides(GOOD, case.changes))
    assert case.says in said.replace('"', ""), said


def test_what_is_just_right_is_taken(defined: Kubectl, namespace: str) -> None:
    for name, changes in ALLOWED.items():
        said = refusal(defined, namespace, "create", apply_overrides(GOOD, changes))
        assert not said, (name, said)


@pytest.mark.parametrize("name", list(UPDATED))
def test_a_change_is_taken_or_refused(defined: Kubectl, namespace: str, name: str) -> None:
    case = UPDATED[name]
    defined.send("create", namespace, apply_overrides(GOOD, case.before))
    said = refusal(defined, namespace, "replace", apply_overrides(GOOD, case.changes))
    assert (case.says in said) if case.says else not said, said


def test_fields_are_explained(defined: Kubectl) -> None:
    text = defined("explain", "rlhfjob.spec.checkpoint.keepBest")
    assert "RewardMean" in text
