"""A job on two node pools: one cluster with a group of workers for each, which work at once."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.on_cluster import DASHBOARD_PORT, GCS_PORT, REPORT_PORT
from rlhf_api.status import JobPhase, RLHFJobStatus
from rlhf_cli.packages.lock import read_lock
from rlhf_runtime.telemetry.run_folder import RunFolder

from ..cluster.kubectl import Kubectl
from ..rlhf_cli.packages.wheels import write_wheel
from ..runs.records import step_metrics
from ..timelines import overlapping_steps, spans_of
from .installed import InstalledOperator
from .job_on_cluster import JobOnCluster
from .kubectl_pods import IMAGE, answer, pod
from .small_jobs import START_SECONDS, small_example, small_pool
from .volume import CheckpointVolume

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
STEPS = 5
ACTORS, CRITICS = "actors", "critics"
ROLES = {"actor": ACTORS, "reference": ACTORS, "critic": CRITICS}
"""Of Split: language models are in the first pool, scalar models in the second."""
CALLS = {
    "actor.generate": ACTORS,
    "actor.train": ACTORS,
    "reference.log_probs": ACTORS,
    "critic.values": CRITICS,
    "critic.train": CRITICS,
}
TIMED_OUT = ("i/o timeout", "Client.Timeout", "context deadline exceeded")
"""kubectl's words for a server that answers nothing."""
RUNTIME_IMAGE = f"localhost/rlhf-runtime:{metadata.version('rlhf-operator')}-cpu"
GREETING = {"GREETING": "hello"}
"""Content of a ConfigMap that the job mounts and reads variables from."""
HELLO = """
def hello(samples):
    return [0.5] * len(samples)
"""
"""The module of a package that only the job's index has."""
LISTENS = re.compile(r"listens at (\S+)")
"""In a rank's log."""


def split_ppo() -> dict[str, Any]:
    """A few steps of PPO; the warm start's weights go from one pool to the other."""
    job = small_example("02-sort-ppo.yaml", small_pool(ACTORS, "4Gi"), small_pool(CRITICS, "4Gi"))
    spec = job["spec"]
    spec["placement"] = {"type": "Split"}
    spec["algorithm"]["ppo"]["klCoefficient"] = 0.05
    warm_start = {"maxSteps": 2, "stopAtExactMatch": None}
    spec["schedule"] = {"steps": STEPS, "promptsPerStep": 64, "warmStart": warm_start}
    spec["resources"]["pod"] = own_pod()
    spec["code"] = {"requirements": ["greeting>=1"]}
    spec["rewards"].append(
        {"name": "hello", "weight": 0.0, "function": {"entrypoint": "greeting:hello"}}
    )
    spec["env"] = [
        *spec.get("env", []),
        {"name": "PIP_NO_INDEX", "value": "1"},
        {"name": "PIP_FIND_LINKS", "value": "/wheels"},
    ]
    return job


def own_pod() -> dict[str, Any]:
    """A template of pods with containers, volumes, variables and an affinity of the user's own."""
    little = {"limits": {"cpu": "100m", "memory": "128Mi"}}
    real_nodes = {"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["kwok"]}]}
    required = {"nodeSelectorTerms": [real_nodes]}
    return {
        "volumes": [
            {"name": "words", "configMap": {"name": "words"}},
            {"name": "wheels", "configMap": {"name": "wheels"}},
            {"name": "local", "emptyDir": {}},
        ],
        "volumeMounts": [
            {"name": "local", "mountPath": "/local", "readOnly": True},
            {"name": "wheels", "mountPath": "/wheels", "readOnly": True},
        ],
        "envFrom": [{"configMapRef": {"name": "words"}}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "terminationGracePeriodSeconds": 40,
        "initContainers": [
            {
                "name": "prepare",
                "image": RUNTIME_IMAGE,
                "command": ["cp", "/words/GREETING", "/local/greeting"],
                "resources": little,
                "volumeMounts": [
                    {"name": "words", "mountPath": "/words"},
                    {"name": "local", "mountPath": "/local"},
                ],
            }
        ],
        "sidecars": [{"name": "beside", "image": IMAGE, "args": ["proxy"], "resources": little}],
    }


@pytest.mark.usefixtures("node")
def test_each_pool_is_a_group_of_workers_and_they_work_at_the_same_time(
    kubectl: Kubectl,
    operator: InstalledOperator,
    namespace_of_jobs: str,
    checkpoints: CheckpointVolume,
    tmp_path: Path,
) -> None:
    manifest = split_ppo()
    job = JobOnCluster(kubectl, namespace_of_jobs, manifest["metadata"]["name"])
    operator.upgrade("podPolicy.extraContainers=true")
    kubectl.apply(namespace_of_jobs, {**config_map("words"), "data": GREETING})
    wheel = write_wheel(tmp_path, "greeting", "1.0", code=HELLO)
    content = base64.b64encode(wheel.read_bytes()).decode()
    kubectl.apply(namespace_of_jobs, {**config_map("wheels"), "binaryData": {wheel.name: content}})
    kubectl.apply(namespace_of_jobs, manifest)
    job.until(lambda status: status.phase is JobPhase.RUNNING, START_SECONDS, "its driver runs")
    check_groups(job)
    check_own_pods(job)
    check_strangers(job)
    pools: dict[str, str] = {}

    def has_succeeded(status: RLHFJobStatus) -> bool:
        # On a busy node a pod may be replaced before the driver starts its workers.
        pools.update(pools_by_address(job))
        return status.phase is JobPhase.SUCCEEDED

    job.until(has_succeeded, START_SECONDS, "its end")
    assert job.status.restarts.total == 0 and job.status.attempts == 1, job.story()
    folder = checkpoints.folder / job.name
    check_places(folder, pools)
    check_packages(folder)
    overlaps = overlapping_steps(folder, "actor.train", "critic.train")
    print(f"\nactor and critic trained at the same time in {len(overlaps)} of {STEPS} steps")
    assert overlaps


def check_groups(job: JobOnCluster) -> None:
    """All workers are of one cluster, which has no others."""
    (cluster,) = job.kubectl.get(job.namespace, "rayclusters")["items"]
    groups = cluster["spec"]["workerGroupSpecs"]
    assert {group["groupName"]: group["replicas"] for group in groups} == {ACTORS: 1, CRITICS: 1}
    pods = job.pods("worker")
    node = job.kubectl.get(job.namespace, "nodes", "--selector=type!=kwok")["items"][0]
    assert {pod["spec"]["nodeName"] for pod in pods} == {node["metadata"]["name"]}
    labels = [pod["metadata"]["labels"] for pod in pods]
    assert {each["ray.io/cluster"] for each in labels} == {cluster["metadata"]["name"]}
    assert sorted(each["ray.io/group"] for each in labels) == [ACTORS, CRITICS]


def config_map(name: str) -> dict[str, Any]:
    """The header of a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def check_packages(folder: Path) -> None:
    """The reward's package was installed once, on the claim, and scored every sample."""
    lock = read_lock(folder)
    assert lock is not None and [package.pin for package in lock.packages] == ["greeting==1.0"]
    (installed,) = (folder / "packages").glob("*/greeting.py")
    assert installed.parent.name == lock.digest
    assert {metrics["reward/hello"] for metrics in step_metrics(folder)} == {0.5}


def check_own_pods(job: JobOnCluster) -> None:
    """Head and workers have what the job's template of pods asks for."""
    pods = job.pods()
    assert len(pods) == 3
    for found in pods:
        containers = {
            status["name"]: status["state"] for status in found["status"]["initContainerStatuses"]
        }
        assert containers["prepare"]["terminated"]["exitCode"] == 0
        assert "running" in containers["beside"], containers
        assert found["spec"]["terminationGracePeriodSeconds"] == 40
        program = "cat /local/greeting; printenv GREETING; touch /local/new 2>&- || echo fixed"
        words = (f"--namespace={job.namespace}", found["metadata"]["name"])
        said = job.kubectl("exec", *words, "--", "bash", "-c", program)
        assert said.endswith("hellohello\nfixed\n"), said


def check_strangers(job: JobOnCluster) -> None:
    """Its head answers the operator, which has reported that it runs, and no other pod."""
    # A namespace beside the job's: its policy admits no other pod of its own namespace either.
    job.kubectl.apply("default", pod("stranger", "proxy"))
    job.kubectl.wait("default", "condition=Ready", "pod/stranger")
    (head,) = job.pods("head")
    for port in (DASHBOARD_PORT, REPORT_PORT, GCS_PORT):
        address = f"{head['status']['podIP']}:{port}"
        said = answer(job.kubectl, "default", "stranger", address)
        # An answer of any kind, also a refusal of the token, would be a connection.
        assert any(text in said for text in TIMED_OUT), f"{port}: {said}"
    job.kubectl("delete", "--namespace=default", "pod/stranger", "--wait=false")


def pools_by_address(job: JobOnCluster) -> dict[str, str]:
    """The pool of each worker's pod, by its address."""
    return {
        pod["status"]["podIP"]: pod["metadata"]["labels"]["ray.io/group"]
        for pod in job.pods("worker")
        if "podIP" in pod["status"]
    }


def check_places(folder: Path, pools: Mapping[str, str]) -> None:
    """The plan's pools are the pods in which the calls of every step ran."""
    run = RunFolder(folder)
    plan = run.read_plan()
    assert plan is not None
    assert {each.role: each.mesh.pool for each in plan.roles if each.mesh} == ROLES
    steps = run.read_spans(range(1, STEPS + 1))
    assert list(steps) == list(range(1, STEPS + 1))
    for spans in steps.values():
        for call, pool in CALLS.items():
            (span,) = spans_of(spans, call)
            assert pools[address_of(folder, span.process)] == pool, call


def address_of(folder: Path, process: str) -> str:
    """Where a process listened, as it has logged itself: the address of its pod."""
    log = folder / "logs" / f"{process.replace(' ', '-')}.log"
    (address,) = LISTENS.findall(log.read_text())
    return str(address)
