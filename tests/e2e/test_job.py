"""A job as a user has it: applied, watched, troubled twice, and its model fetched, all for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from safetensors import safe_open

from rlhf_api.status import ConditionType, JobPhase, RLHFJobStatus
from rlhf_runtime.telemetry.run_folder import RunFolder

from ..busy_programs import busy_programs
from ..cluster.devcluster import DevCluster, output_of
from ..cluster.kubectl import Kubectl
from ..runs.records import repeated
from ..scoring_service import scoring_service
from ..waiting import wait_until
from .installed import InstalledOperator
from .job_on_cluster import JobOnCluster, Seen
from .small_jobs import EXAMPLES, START_SECONDS, small_example, small_pool
from .startup import startup_times
from .volume import CheckpointVolume

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
EXAMPLE = "18-calculator.yaml"
STEPS = 120
MORE_STEPS = 130
"""Of the manifest as it is edited."""
ENVIRONMENT = {
    "drawing.py": """
import random

from calculator import Calculator


class Drawing(Calculator):
    def reward(self) -> float:
        return random.random()
"""
}
"""A calculator whose objects never give the same reward twice."""
END_SECONDS = 600
REPEATED_STEPS = 10
"""A loss takes the steps that the newest complete checkpoint lacks: those in flight."""
NUM_BUSY_PROGRAMS = 8
OPERATOR_SECONDS = 2.0
"""What the operator may take of a start besides planning."""
CLOCK_SECONDS = 1.0
"""How exactly Kubernetes says when a pod was ready."""


def long_job() -> dict[str, Any]:
    """Conversations with a checkpoint after each step, for as long as the job is troubled."""
    job = small_example(EXAMPLE, small_pool("cpu", "6Gi"))
    spec = job["spec"]
    spec["code"] = {"configMap": {"name": "environments"}}
    spec["rollout"]["environment"]["entrypoint"] = "drawing:Drawing"
    spec["rewards"].append({"name": "draw", "weight": 0.0, "environment": {}})
    spec["schedule"].update(steps=STEPS, promptsPerStep=8)
    del spec["schedule"]["evaluateEverySteps"]
    spec["checkpoint"] = {"everySteps": 1}
    spec["failurePolicy"] = {"backoffSeconds": 1}
    return job


def environments() -> dict[str, Any]:
    """The ConfigMap with the code of the job's environment."""
    calculator = EXAMPLES / "environments" / "calculator.py"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "environments"},
        "data": {**ENVIRONMENT, calculator.name: calculator.read_text()},
    }


def rlhf(kubectl: Kubectl, *arguments: str) -> str:
    """What the command prints, as its user runs it."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("rlhf")), *arguments],
        env={**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return output_of(done)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closed at the end."""
    with ExitStack() as opened:
        yield opened


def node_address(kubectl: Kubectl) -> str:
    """Address at which pods reach this machine."""
    node = kubectl.get("default", "nodes", "--selector=type!=kwok")["items"][0]
    addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
    return str(addresses["InternalIP"])


def test_the_chart_tests_itself(operator: InstalledOperator) -> None:
    assert "Succeeded" in operator.test()


def test_a_job_survives_its_pods_its_node_its_volume_an_upgrade_and_an_edit_and_leaves_a_model(
    kubectl: Kubectl,
    node_cluster: DevCluster,
    operator: InstalledOperator,
    namespace_of_jobs: str,
    checkpoints: CheckpointVolume,
    stack: ExitStack,
    tmp_path: Path,
) -> None:
    manifest = long_job()
    job = JobOnCluster(kubectl, namespace_of_jobs, manifest["metadata"]["name"])
    numbers = count()
    # A service that never gives the same score twice.
    url = stack.enter_context(scoring_service(lambda sample: next(numbers), node_address(kubectl)))
    manifest["spec"]["rewards"].append({"name": "grade", "weight": 0.0, "http": {"url": url}})
    kubectl.apply(namespace_of_jobs, environments())
    applied = time.time()
    kubectl.apply(namespace_of_jobs, manifest)
    job.until(has_done(1), START_SECONDS, "its first step")
    times = startup_times(job, applied, checkpoints.folder / job.name)
    print(f"\nFrom `kubectl apply` to the first step:\n{times.table()}")
    assert times.operator < OPERATOR_SECONDS + CLOCK_SECONDS, f"{times.table()}\n{job.story()}"

    # Its pods reach the API server behind the Service's address, at the server's own port.
    port = urlsplit(
        kubectl("config", "view", "--output=jsonpath={.clusters[0].cluster.server}")
    ).port
    policy = f"networkPolicy.enabled=true,networkPolicy.apiServer.ports={{443,{port}}}"
    operator.upgrade(f"logging.level=debug,{policy}")
    job.until(trains_after(job.step), START_SECONDS, "a step seen by the next operator")
    assert job.status.restarts.total == 0, job.story()

    folder = checkpoints.folder / job.name
    drain_head_of_busy_node(job)
    assert RunFolder(folder).read().steps_repeated == 0, "its driver has saved before"
    fill_volume(job, checkpoints)
    drain(job, "worker")
    with node_cordoned(kubectl):
        evict(job, "head", "worker")
        job.until(is_unschedulable, START_SECONDS, "its pods wait for another node")
    job.until(trains_after(job.step), START_SECONDS, "a step after the drain of its node")
    assert job.status.restarts.since_checkpoint == 0, job.story()
    lose_node(job, node_cluster)
    job.until(trains_after(job.step), START_SECONDS, "a step after the loss of its node")

    clusters = job.status.attempts
    job.edit(suspend=True)
    job.edit(suspend=False, schedule={"steps": MORE_STEPS})  # while its driver saves, or before
    job.until(lambda status: status.attempts > clusters, START_SECONDS, "a cluster of the edit")
    job.until(lambda status: status.phase == JobPhase.SUCCEEDED, END_SECONDS, "its end")
    check_end(job)
    check_steps(folder)
    check_repeated_steps(folder)
    check_files(kubectl, job, checkpoints, tmp_path)


def drain(job: JobOnCluster, kind: str) -> None:
    """A pod is evicted, as a drain of its node does: the job goes on, and nothing counts."""
    before = job.step
    evict(job, kind)
    job.until(trains_after(before), START_SECONDS, f"a step after the drain of its {kind}")


def drain_head_of_busy_node(job: JobOnCluster) -> None:
    """The next head starts on a node that has little time for it, and at the first try."""
    before = job.step
    evict(job, "head")
    with busy_programs(NUM_BUSY_PROGRAMS):
        wait_until(lambda: any(map(is_ready, new_heads(job))), START_SECONDS, "another head")
    (head,) = new_heads(job)
    assert head["status"]["containerStatuses"][0]["restartCount"] == 0, job.pods_story()
    job.until(trains_after(before), START_SECONDS, "a step after the drain of its head")


def new_heads(job: JobOnCluster) -> list[Any]:
    """Return its heads, without the evicted one, which stays ready while its driver saves."""
    return [pod for pod in job.pods("head") if "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """True if the pod is ready."""
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", ())
    )


def fill_volume(job: JobOnCluster, volume: CheckpointVolume) -> None:
    """A full volume is reported, and training goes on by itself when there is space again."""

    def is_reported(status: RLHFJobStatus) -> bool:
        volume.fill()  # again: the driver deletes an older checkpoint to make space
        return failing_reason(status) == "NoSpace"

    job.until(is_reported, START_SECONDS, "its volume is full")
    restarts, step = job.status.restarts.total, job.step
    volume.empty()
    job.until(
        lambda status: failing_reason(status) is None and trains_after(step)(status),
        START_SECONDS,
        "it has space again",
    )
    assert job.status.restarts.total == restarts, job.story()


def failing_reason(status: RLHFJobStatus) -> str | None:
    """Return why no checkpoint can be written. None: they are written."""
    reasons = [
        condition.reason
        for condition in status.conditions
        if condition.type is ConditionType.CHECKPOINTS_FAILING and condition.status == "True"
    ]
    return reasons[0] if reasons else None


def evict(job: JobOnCluster, *kinds: str) -> None:
    """Evict pods at once, and wait until the operator knows of a disruption."""
    disruptions = job.status.restarts.disruptions
    for kind in kinds:
        job.evict(kind)
    job.until(
        lambda status: status.restarts.disruptions > disruptions,
        START_SECONDS,
        f"it noticed the end of its {' and '.join(kinds)}",
    )


def is_unschedulable(status: RLHFJobStatus) -> bool:
    """True if the scheduler finds no node for a pod, and says so."""
    return status.reason == "Unschedulable"


@contextmanager
def node_cordoned(kubectl: Kubectl) -> Iterator[None]:
    """The only real node takes no new pods meanwhile."""
    node = kubectl.get("default", "nodes", "--selector=type!=kwok")["items"][0]["metadata"]["name"]
    kubectl("cordon", node)
    try:
        yield
    finally:
        kubectl("uncordon", node)


def lose_node(job: JobOnCluster, cluster: DevCluster) -> None:
    """Its node's kubelet stands still, and somebody who takes the node for dead deletes the pods by
    force: their containers run on until the kubelet is back."""
    restarts = job.status.restarts.total
    with cluster.frozen("kubelet"):
        job.delete_pods_by_force()
        job.until(has_restarted(restarts), START_SECONDS, "it noticed that its node is lost")


def has_done(step: int) -> Seen:
    """Whether that many steps are reported."""
    return lambda status: status.progress is not None and status.progress.step >= step


def has_restarted(before: int) -> Seen:
    """Whether something was started again once more."""
    return lambda status: status.restarts.total > before


def trains_after(step: int) -> Seen:
    """Whether a driver that lives has trained more steps."""

    def holds(status: RLHFJobStatus) -> bool:
        done = status.progress
        if done is None or status.phase != JobPhase.RUNNING:
            return False
        return done.phase == "Train" and done.step > step

    return holds


def check_end(job: JobOnCluster) -> None:
    """It says that all went well, and how well."""
    status = job.status
    conditions = {each.type: each.status for each in status.conditions}
    assert {conditions["Complete"], conditions["Ready"]} == {"True"}, job.story()
    assert status.progress is not None and status.progress.step == MORE_STEPS
    assert status.checkpoint is not None and status.checkpoint.step == MORE_STEPS
    columns = job.columns()
    assert columns["PHASE"] == "Succeeded" and columns["STEP"] == str(MORE_STEPS)
    assert float(columns["REWARD"]) > 0.1, "a warm start leaves more than that"
    assert int(columns["RESTARTS"]) == status.restarts.total


def check_steps(folder: Path) -> None:
    """Every step was done, and few twice: each start went on from the newest checkpoint."""
    records = RunFolder(folder).read()
    assert [each.step for each in records.steps] == list(range(1, MORE_STEPS + 1))
    assert len(records.runs) > 1 and records.warm_start
    assert records.steps_repeated <= REPEATED_STEPS, "at a checkpoint for each step"


def check_repeated_steps(folder: Path) -> None:
    """Steps that ran again have the numbers of the first time, also those nobody gives twice."""
    steps = repeated(folder)
    print(f"\nsteps that ran again: {[*steps]}")
    assert steps, "a checkpoint is complete only after the next step"
    for runs in steps.values():
        assert {"reward/grade", "reward/draw"} <= runs[0].keys()
        assert all(run == runs[0] for run in runs), runs


def check_files(
    kubectl: Kubectl, job: JobOnCluster, checkpoints: CheckpointVolume, folder: Path
) -> None:
    """Its model, its log and its steps are there when its cluster is gone."""
    kubectl(
        "wait", "--for=delete", "pod", "--all", f"--namespace={job.namespace}", "--timeout=180s"
    )
    place = f"--namespace={job.namespace}"
    rlhf(kubectl, "fetch", job.name, "model", place, f"--output={folder}")
    assert (folder / "model" / "config.json").exists()
    with safe_open(folder / "model" / "model.safetensors", "pt") as weights:
        assert "model.embed_tokens.weight" in weights.keys()  # noqa: SIM118
    log = rlhf(kubectl, "logs", job.name, place)
    assert f"step={MORE_STEPS}" in log and "finished outcome=succeeded" in log
    assert not job.pods(), "the pods that read are gone, too"
