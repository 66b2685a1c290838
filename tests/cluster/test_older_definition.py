"""Jobs that were stored under an earlier definition, and their clusters, live on under this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.reading.conversion import convert_text
from rlhf_api.reading.status import read_status
from rlhf_operator.config import JobDefaults
from rlhf_operator.observe.parse import parse_job

from ..waiting import wait_until
from .definition import define, is_established, undefined
from .devcluster import CommandFailed
from .kubectl import Kubectl
from .session import new_namespace

pytestmark = pytest.mark.cluster

OLDER = Path(__file__).parent / "older"
DEFINITION = OLDER / "rlhfjobs-2026-11-28.json"
"""That of the last release before pods had templates, without its descriptions."""
JOB = OLDER / "job.yaml"
DIGEST = "55e48547a7013a0a"
"""Digest that the operator of that release computed for the job with these defaults."""
STATUS = {
    "observedGeneration": 1,
    "phase": "Running",
    "attempts": 2,
    "defaults": {"head": {"ephemeralStorage": "5Gi"}, "worker": {"cpuLimit": "20"}},
    "cluster": {"name": "older-2", "attempt": 2, "manifestDigest": DIGEST},
}


@pytest.fixture(scope="module")
def upgraded(kubectl: Kubectl) -> Iterator[tuple[Kubectl, str]]:
    """A namespace with a job that runs, stored before the definition was upgraded."""
    with undefined(kubectl), new_namespace(kubectl) as namespace:
        kubectl("apply", f"--filename={DEFINITION}")
        wait_until(lambda: is_established(kubectl), 60, "the API server serves RLHFJobs")
        kubectl("create", f"--namespace={namespace}", f"--filename={JOB}")
        status = json.dumps({"status": STATUS})
        words = ("--type=merge", "--subresource=status", f"--patch={status}")
        kubectl("patch", "rlhfjob", "older", f"--namespace={namespace}", *words)
        define(kubectl)
        wait_until(lambda: _knows_pods(kubectl, namespace), 60, "the API server has the new one")
        yield kubectl, namespace


def _knows_pods(kubectl: Kubectl, namespace: str) -> bool:
    document = yaml.safe_load(JOB.read_text("utf-8"))
    document["metadata"]["name"] = "newer"
    document["spec"]["resources"]["pod"] = {"labels": {"a": "b"}}
    try:
        kubectl.send("create", namespace, document, "--dry-run=server", "--validate=strict")
    except CommandFailed:
        return False
    return True


def stored(kubectl: Kubectl, namespace: str) -> Any:
    return kubectl.get(namespace, "rlhfjob", "older")


def test_it_is_read_as_before_and_its_cluster_is_not_replaced(
    upgraded: tuple[Kubectl, str],
) -> None:
    raw = stored(*upgraded)
    assert raw["metadata"]["generation"] == 1
    status = read_status(raw["status"])
    assert status.defaults is not None and status.cluster is not None
    assert status.defaults.head.ephemeral_storage == "5Gi"
    # A chart of today, whose defaults would change the pods.
    chart = JobDefaults.model_validate({"pod": {"schedulerName": "volcano"}})
    observed = parse_job(raw, chart)
    assert observed.problem is None and observed.job is not None
    assert observed.matches(DIGEST)
    assert observed.job.spec.seconds_cluster_is_kept == 60
    (pool,) = observed.job.spec.resources.node_pools
    assert pool.pod.scheduler_name is None and pool.node_selector == {"pool": "a100"}


def test_its_converted_manifest_is_no_change_of_its_cluster(upgraded: tuple[Kubectl, str]) -> None:
    kubectl, namespace = upgraded
    text, changes = convert_text(JOB.read_text("utf-8"), "job.yaml")
    assert changes
    document = yaml.safe_load(text)
    kubectl.send("replace", namespace, document, "--validate=strict")
    # `replace` leaves out the status, which only its subresource changes.
    observed = parse_job(stored(kubectl, namespace), JobDefaults())
    assert observed.problem is None and observed.job is not None
    assert observed.job.spec.cluster_ttl_seconds == 60
    assert observed.matches(DIGEST)


def test_what_could_not_change_cannot_change_now(upgraded: tuple[Kubectl, str]) -> None:
    kubectl, namespace = upgraded
    for path, value in (("pod", {"labels": {"a": "b"}}), ("headPod", {"schedulerName": "x"})):
        patch = json.dumps({"spec": {"resources": {path: value}}})
        with pytest.raises(CommandFailed, match="spec.resources can change only while"):
            words = ("--type=merge", f"--patch={patch}", f"--namespace={namespace}")
            kubectl("patch", "rlhfjob", "older", *words)
