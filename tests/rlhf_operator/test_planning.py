"""Plans that the operator makes, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.failure import FailureRule
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.telemetry import MlflowSpec, WandbSpec
from rlhf_operator.decide.observed import PlanResult
from rlhf_operator.observe.planner import Planner, make_plan_result, plan_key, spawn
from rlhf_planner.plan import make_plan, pools_of

from ..waiting import wait_until
from .world import manifest

SECONDS = 120.0
"""How long a plan may take on a busy machine."""
SLOW_NETWORK = {
    "name": "a100",
    "nodes": 2,
    "devicesPerNode": 4,
    "gpu": "A100-80G",
    "hardware": {"networkGigabitsPerSecond": 25},
}
SEVENTY_BILLION = {
    "numLayers": 80,
    "hiddenSize": 8192,
    "intermediateSize": 28672,
    "numAttentionHeads": 64,
    "numKeyValueHeads": 8,
    "headDim": 128,
    "vocabSize": 128256,
}


def job(**spec: Any) -> RLHFJob:
    return RLHFJob.model_validate(manifest(**spec))


def ask(planner: Planner, wanted: RLHFJob) -> PlanResult:
    """Ask until the plan is there, as the operator does."""
    for _ in range(3):
        made = threading.Event()
        answer = planner.plan(wanted, made.set)
        if answer is not None:
            return answer
        assert made.wait(SECONDS), "nobody told that the plan is made"
    raise AssertionError("the plan was made, and is not there")


class Counted:
    """Counts what is handed to real processes."""

    def __init__(self, processes: int) -> None:
        self.executor = spawn(processes)
        self.number = 0

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self.number += 1
        return self.executor.submit(work, *arguments)

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        self.executor.shutdown(wait, cancel_futures=cancel_futures)


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted(1)


@pytest.fixture(scope="module")
def planner(counted: Counted) -> Iterator[Planner]:
    planner = Planner(1, lambda processes: counted)  # type: ignore[arg-type,return-value]
    yield planner
    planner.close()


def test_a_built_in_algorithm_is_planned_for_the_jobs_pool(planner: Planner) -> None:
    observed = ask(planner, job())
    assert observed.refusal is None and observed.unknown == "" and observed.plan is not None
    assert "2 x 4 GPU of pool a100: actor" in observed.plan.summary
    assert 0 < observed.plan.peak_memory_bytes < 80 * 10**9


def test_two_pools_stand_in_the_summary(planner: Planner) -> None:
    pools = [
        {"name": name, "nodes": nodes, "devicesPerNode": 4, "gpu": "A100-80G"}
        for name, nodes in (("large", 2), ("small", 1))
    ]
    groups = [{"roles": ["actor"], "pool": "large"}, {"roles": ["critic"], "pool": "small"}]
    asked = job(
        algorithm={"type": "PPO"},
        resources={"nodePools": pools},
        placement={"type": "Manual", "groups": groups},
    )
    observed = ask(planner, asked)
    assert observed.plan is not None, observed
    assert observed.plan.placement is PlacementType.MANUAL
    assert (
        "2 x 4 GPU of pool large: actor; 1 x 4 GPU of pool small: critic" in observed.plan.summary
    )


def test_groups_that_leave_a_role_out_are_refused() -> None:
    groups = [{"roles": ["actor"]}]
    observed = make_plan_result(
        job(algorithm={"type": "PPO"}, placement={"type": "Manual", "groups": groups})
    )
    assert observed.refusal is not None and observed.refusal.reason == "InvalidPlacement"
    assert "no group with critic" in observed.refusal.message


def test_a_plan_is_made_once_for_all_that_it_does_not_depend_on(
    planner: Planner, counted: Counted
) -> None:
    first = ask(planner, job())
    before = counted.number
    same = job(suspend=True, failurePolicy={"maxRestarts": 9}, image={"runtime": "other:2"})
    assert ask(planner, same) == first and counted.number == before
    others: list[dict[str, Any]] = [
        {"rollout": {"samplesPerPrompt": 4}},
        {"rollout": {"samplesPerPrompt": 4, "expectedResponseTokens": 4}},
        {"failurePolicy": {"standby": False}},
        {"checkpoint": {"everySteps": 7}},
        {"resources": {"nodePools": [SLOW_NETWORK]}},
    ]
    for number, changes in enumerate(others, start=1):
        ask(planner, job(**changes))
        assert counted.number == before + number


OTHERWISE: dict[str, dict[str, Any]] = {
    "failure_policy": {
        "max_restarts": 9,
        "max_disruptions": 9,
        "space_deadline_seconds": 9,
        "backoff_seconds": 9,
        "progress_deadline_seconds": 9,
        "standby": True,
        "max_skipped_steps": 9,
        "max_unscored_steps": 9,
        "rules": (FailureRule(on_reason="Odd", action="Fail"),),
    },
    "checkpoint": {
        "every_steps": 0,
        "keep_last": 9,
        "keep_best": "None",
        "final_model": "Best",
        "model_format": "float32",
        "journal": "Off",
        "on_error": "Fail",
        "start": "Fresh",
        "storage": CheckpointStorage(uri="s3://bucket/x"),
    },
    "telemetry": {
        "tensorboard": False,
        "samples_every_steps": 0,
        "wandb": WandbSpec(project="p"),
        "mlflow": MlflowSpec(tracking_uri="http://m", experiment="e"),
    },
}
"""Another value of every field of sections that no plan depends on, or only in part."""


def test_what_the_key_of_a_plan_leaves_out_changes_no_plan() -> None:
    """On CPUs memory depends on checkpoints, and on what stands by."""
    cpus = {"name": "c", "device": "CPU", "devicesPerNode": 2, "resources": {"memory": "32Gi"}}
    asked = job(resources={"nodePools": [cpus]})
    changes: dict[str, Any] = {"suspend": True, "managed_by": "o", "image": ImageSpec(runtime="o")}
    others = [{name: value} for name, value in changes.items()]
    for section, values in OTHERWISE.items():
        model = getattr(asked.spec, section)
        assert {*values} == {*type(model).model_fields}, "a value for every field"
        others += [{section: model.model_copy(update={k: v})} for k, v in values.items()]
    _, plan = make_plan(asked, pools_of(asked))
    depended_on = []
    for change in others:
        other = asked.model_copy(update={"spec": asked.spec.model_copy(update=change)})
        is_same = make_plan(other, pools_of(other))[1] == plan
        assert is_same or plan_key(other) != plan_key(asked), change
        if not is_same:
            depended_on.append(next(iter(change)))
    assert depended_on == ["failure_policy", "checkpoint"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": {"samplesPerPrompt": 4, "expectedPromptTokens": 4}},
        {"rollout": {"samplesPerPrompt": 4, "expectedResponseTokens": 4}},
        {"rollout": {"samplesPerPrompt": 4, "expectedTruncated": 0.25}},
        {"checkpoint": {"everySteps": 7}},
        {"failurePolicy": {"standby": True}},
        {"placement": {"objective": {"type": "DeviceTime"}}},
        {"placement": {"objective": {"type": "FewestDevices", "maxStepSeconds": 9}}},
        {"placement": {"objective": {"type": "FewestDevices", "maxStepSeconds": 8}}},
        {"placement": {"maxDevices": 4}},
    ],
)
def test_what_a_plan_depends_on_changes_its_key(changes: dict[str, Any]) -> None:
    assert plan_key(job(**changes)) != plan_key(job())


def test_a_plan_in_short_has_its_times_and_devices() -> None:
    observed = make_plan_result(job()).plan
    _, plan = make_plan(job(), pools_of(job()))
    assert observed is not None and plan.estimate is not None
    assert float(observed.step_seconds or 0) == pytest.approx(plan.estimate.step_seconds, rel=1e-3)
    assert observed.tokens_per_second == round(plan.estimate.tokens_per_second)
    assert observed.hardware == "A100-80G"
    assert [(each.name, each.num_devices) for each in observed.pools] == [("a100", 8)]


def test_times_that_nobody_knows_are_not_in_it() -> None:
    cpus = {"name": "c", "device": "CPU", "devicesPerNode": 2, "resources": {"memory": "32Gi"}}
    odd = {"name": "o", "gpu": "Unheard-1", "memoryPerDevice": "80Gi"}
    for pool in (cpus, odd):
        observed = make_plan_result(job(resources={"nodePools": [pool]})).plan
        assert observed is not None and observed.pools
        assert (observed.step_seconds, observed.tokens_per_second, observed.hardware) == (
            None,
            None,
            None,
        )


def test_an_objective_takes_a_part_of_the_pool() -> None:
    observed = make_plan_result(job(placement={"objective": {"type": "DeviceTime"}})).plan
    assert observed is not None
    assert sum(each.num_devices for each in observed.pools) < 8
    assert observed.summary.startswith("1 x ")


def test_an_objective_of_devices_that_nobody_knows_is_refused() -> None:
    pool = {"name": "any", "gpu": "Unheard-1", "memoryPerDevice": "80Gi"}
    asked = job(resources={"nodePools": [pool]}, placement={"objective": {"type": "DeviceTime"}})
    observed = make_plan_result(asked)
    assert observed.refusal is not None and observed.refusal.reason == "TimesUnknown"
    assert "got gpu Unheard-1" in observed.refusal.message


def test_what_cannot_fit_is_refused_with_the_arithmetic() -> None:
    small = {"name": "small", "nodes": 1, "devicesPerNode": 1, "gpu": "T4"}
    models = {"actor": {"source": {"path": "org/model"}, "shape": SEVENTY_BILLION}}
    observed = make_plan_result(job(models=models, resources={"nodePools": [small]}))
    assert observed.refusal is not None and observed.plan is None
    assert observed.refusal.reason == "DoesNotFit" and "GiB" in observed.refusal.message


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"algorithm": {"type": "Custom", "custom": {"entrypoint": "mine:Algorithm"}}},
            "the user's own code",
        ),
        ({"models": {"actor": {"source": {"path": "org/model"}}}}, "spec.models.actor.shape"),
    ],
)
def test_what_only_the_driver_knows_is_not_planned_here(
    planner: Planner, counted: Counted, spec: dict[str, Any], said: str
) -> None:
    before = counted.number
    observed = planner.plan(job(**spec), lambda: None)
    assert observed is not None and observed.plan is None and observed.refusal is None
    assert said in observed.unknown and counted.number == before


def test_a_gpu_that_nobody_knows_leaves_the_plan_to_the_driver() -> None:
    observed = make_plan_result(job(resources={"nodePools": [{"name": "any", "gpu": "Unheard-1"}]}))
    assert (
        observed.plan is None
        and observed.refusal is None
        and "the driver plans first" in observed.unknown
    )


def dying(processes: int) -> Executor:
    """An executor one of whose processes has ended as if by the kernel's hand."""
    executor = spawn(processes)
    executor.submit(os._exit, 1)
    return executor


def test_a_planner_that_dies_stops_no_job_and_the_next_plan_is_made() -> None:
    starts: Iterator[Callable[[int], Executor]] = iter((dying, spawn))
    planner = Planner(1, lambda processes: next(starts)(processes))
    try:
        observed = ask(planner, job())
        assert observed.plan is None and "the planner failed" in observed.unknown
        assert ask(planner, job()).plan is not None
    finally:
        planner.close()


KILLED = """
import os, signal
from rlhf_operator.observe.planner import spawn
print(spawn(1).submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def lives(pid: int) -> bool:
    """Whether a process does anything yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_an_operator_that_is_killed_leaves_no_planner() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as operator:
        assert operator.stdout is not None
        planner = int(operator.stdout.readline())
    assert operator.returncode == -signal.SIGKILL
    wait_until(lambda: not lives(planner), SECONDS, "the end of its planner")
