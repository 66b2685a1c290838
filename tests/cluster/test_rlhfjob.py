"""A real API server takes the CustomResourceDefinition, and refuses what it has to."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.on_cluster import OWNER_LABEL, QUEUE_LABEL
from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.yaml_documents import read_documents
from rlhf_kube.api_server import ApiServer, Request
from rlhf_kube.kinds import Kind
from rlhf_operator.config import JobDefaults
from rlhf_operator.observe.parse import parse_job

from ..rlhf_api.rule_cases import ALLOWED, CREATED, GOOD, UPDATED
from .kubectl import Kubectl
from .session import new_namespace

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
MANIFESTS = [*EXAMPLES, *sorted((ROOT / "tests/rlhf_api/manifests").glob("*.yaml"))]
DRY_RUN = {"dryRun": "All"}


class Jobs:
    """RLHFJobs of one namespace, as the API server has them."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server = server
        self._path = Kind.JOB.path(namespace)

    def refusal(self, manifest: Mapping[str, Any]) -> str:
        """Return why the API server would not create a job; empty if it would."""
        return _message(*self._ask("POST", self._path, manifest, DRY_RUN))

    def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create a job, and return it as the API server keeps it."""
        status, answer = self._ask("POST", self._path, manifest)
        assert status == 201, answer
        return answer

    def refusal_of_change(self, made: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
        """Return why the API server would not replace a job that it has made."""
        metadata = {**manifest["metadata"], "resourceVersion": made["metadata"]["resourceVersion"]}
        path = f"{self._path}/{metadata['name']}"
        return _message(*self._ask("PUT", path, {**manifest, "metadata": metadata}, DRY_RUN))

    def _ask(
        self,
        method: str,
        path: str,
        manifest: Mapping[str, Any],
        query: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        strictly = {**(query or {}), "fieldValidation": "Strict"}  # as kubectl does
        answer = self._server.ask(Request(method, path, strictly, manifest))
        return answer.status, json.loads(answer.data)


def _message(status: int, answer: Mapping[str, Any]) -> str:
    return "" if status < 300 else str(answer["message"])


@pytest.fixture(scope="module")
def jobs(defined: Kubectl) -> Iterator[Jobs]:
    """A namespace for all tests of this file that name their jobs."""
    with new_namespace(defined) as namespace, defined.api_server() as server:
        yield Jobs(server, namespace)


def renamed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The same job under a name that no other has."""
    copy: dict[str, Any] = deepcopy(dict(manifest))
    copy["metadata"] = {**copy["metadata"], "name": f"job-{uuid.uuid4().hex[:8]}"}
    return copy


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_taken(jobs: Jobs, manifest: Path) -> None:
    ((document,), _) = read_documents(manifest.read_text())
    job = jobs.create(renamed(document.value))
    assert job["status"]["phase"] == "Pending" and job["status"]["observedGeneration"] == -1


@pytest.mark.parametrize(
    "verb", ["apply", "apply --server-side", "create"], ids=["client-side", "server-side", "create"]
)
def test_the_operator_reads_examples_however_they_are_sent(
    defined: Kubectl, namespace: str, verb: str
) -> None:
    defined(*verb.split(), f"--namespace={namespace}", f"--filename={ROOT / 'examples'}")
    found = defined.get(namespace, "rlhfjobs")["items"]
    assert len(found) == len(EXAMPLES)
    for raw in found:
        seen = parse_job(raw, JobDefaults())
        assert seen.problem is None and seen.job is not None, raw["metadata"]["name"]
    titles = defined("get", "rlhf", f"--namespace={namespace}").split()[:4]
    assert titles == ["NAME", "PHASE", "STEP", "STEPS"]


def test_queue_and_owner_are_columns(defined: Kubectl, namespace: str) -> None:
    labels = {QUEUE_LABEL: "research", OWNER_LABEL: "ada"}
    job = {**GOOD, "metadata": {**GOOD["metadata"], "namespace": namespace, "labels": labels}}
    defined("create", "--filename=-", stdin=json.dumps(job))
    wide = defined("get", "rlhf", f"--namespace={namespace}", "--output=wide").splitlines()
    head, row = (line.split() for line in wide)
    assert head[-2:] == ["QUEUE", "OWNER"] and row[-2:] == ["research", "ada"]
    assert "BUSY" in head


@pytest.mark.parametrize("name", list(CREATED))
def test_what_is_wrong_is_refused_in_words(jobs: Jobs, name: str) -> None:
    case = CREATED[name]
    said = jobs.refusal(apply_overrides(GOOD, case.changes))
    assert case.says in said.replace('"', ""), said


def test_what_is_just_right_is_taken(jobs: Jobs) -> None:
    for name, changes in ALLOWED.items():
        said = jobs.refusal(apply_overrides(GOOD, changes))
        assert not said, (name, said)


@pytest.mark.parametrize("name", list(UPDATED))
def test_a_change_is_taken_or_refused(jobs: Jobs, name: str) -> None:
    case = UPDATED[name]
    good = renamed(GOOD)
    made = jobs.create(apply_overrides(good, case.before))
    said = jobs.refusal_of_change(made, apply_overrides(good, case.changes))
    assert (case.says in said) if case.says else not said, said


def test_fields_are_explained(defined: Kubectl) -> None:
    text = defined("explain", "rlhfjob.spec.checkpoint.keepBest")
    assert "RewardMean" in text
