"""Jobs of an earlier release live on under this one's chart, and after a downgrade."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.reading.status import read_status
from rlhf_cli.cluster.jobs import read_job
from rlhf_cli.cluster.older_definition import lost_fields, read_definition
from rlhf_operator.config import JobDefaults
from rlhf_operator.observe.parse import parse_job

from ..cluster.definition import undefined
from ..cluster.kubectl import Kubectl
from .helm import RELEASE, Helm
from .installed import Place, own_place

pytestmark = pytest.mark.cluster

OLDER = Path(__file__).parent / "older" / "rlhf-operator-0.1.0-older.tgz"
"""The chart before GPUs were counted as busy or idle, with its definition."""
JOB = OLDER.parent / "job.yaml"
"""A job with every field that the older definition has."""
STATUS: Mapping[str, Any] = {
    "observedGeneration": 1,
    "phase": "Running",
    "reason": "Running",
    "message": "training",
    "gpus": 8,
    "gpuSeconds": 7200,
    "gpusAccountedTime": "2026-01-02T03:00:00Z",
    "attempts": 1,
    "restarts": {"drivers": 1, "total": 1},
    "cluster": {"name": "full-1", "attempt": 1, "headPodUid": "abc", "admitted": True},
    "driver": {"submissionId": "full-1-1", "attempt": 1, "restart": 1, "sequence": 7},
}
ADDED: Mapping[str, Any] = {"busyGpus": 8, "idleGpuSeconds": 60, "phaseSeconds": {"Planning": 3}}
"""Fields that the older definition lacks."""


@pytest.fixture
def place(helm: Helm, kubectl: Kubectl, kubeconfig: Path) -> Iterator[Place]:
    for place in own_place(Helm(helm.program, helm.home, kubeconfig), kubectl):
        with undefined(kubectl):
            yield place
            place.helm("uninstall", RELEASE, "--namespace", place.system, "--ignore-not-found")


def write_status(place: Place, name: str, status: Mapping[str, Any]) -> str:
    patch = f"--patch={json.dumps({'status': status})}"
    where = (f"--namespace={place.team_a}", "rlhfjob", name)
    return place.kubectl("patch", *where, "--subresource=status", "--type=merge", patch)


def with_values_of(older: Any, newer: Any) -> Any:
    """`newer` with every value that `older` has: fields that are new keep their defaults."""
    match older, newer:
        case dict(), dict():
            shared = {key: with_values_of(value, newer.get(key)) for key, value in older.items()}
            return {**newer, **shared}
        case list(), list() if len(older) == len(newer):
            return [with_values_of(*pair) for pair in zip(older, newer, strict=True)]
        case _:
            return older


def test_a_running_job_is_the_same_after_an_upgrade_and_after_a_downgrade(place: Place) -> None:
    kubectl = place.kubectl
    place.helm("install", *place.arguments("smallest", chart=str(OLDER)))
    kubectl("apply", "--server-side", f"--namespace={place.team_a}", f"--filename={JOB}")
    (created,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    name = created["metadata"]["name"]
    said = write_status(place, name, {**STATUS, **ADDED})
    assert "unknown field" in said, "it is an older definition"
    (before,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    assert ADDED.keys().isdisjoint(before["status"])

    place.helm("upgrade", *place.arguments("smallest"))
    (upgraded,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    assert upgraded["metadata"]["uid"] == before["metadata"]["uid"]
    assert with_values_of(before["spec"], upgraded["spec"]) == upgraded["spec"]
    observed = parse_job(upgraded, JobDefaults())
    assert observed.problem is None and observed.status.driver is not None
    assert observed.status == read_status(before["status"])
    assert "unknown field" not in write_status(place, name, ADDED)
    # What `rlhf check-downgrade` names is what the API server drops.
    added = json.dumps({"spec": {"clusterTTLSeconds": 60}})
    where = (f"--namespace={place.team_a}", "rlhfjob", name)
    kubectl("patch", *where, "--type=merge", f"--patch={added}")
    (changed,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    schema = read_definition(place.helm("template", str(OLDER)), "the older chart")
    assert [field.path for field in lost_fields(schema, read_job(changed))] == [
        "spec.clusterTTLSeconds"
    ]

    place.helm("upgrade", *place.arguments("smallest", chart=str(OLDER)))
    write_status(place, name, {"message": "still training"})
    (downgraded,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    assert downgraded["metadata"]["uid"] == before["metadata"]["uid"]
    assert downgraded["spec"].keys() == before["spec"].keys()
    assert ADDED.keys().isdisjoint(downgraded["status"]), "what it counted is lost"
    assert downgraded["status"]["driver"] == before["status"]["driver"]
