"""What the operator serves about itself and its jobs."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from rlhf_api.status import (
    CheckpointStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    PlanStatus,
    ProgressStatus,
    RestartStatus,
    RLHFJobStatus,
)
from rlhf_operator.process.health import MAX_ANSWER_AGE_SECONDS, Health, serve
from rlhf_operator.process.job_metrics import SHOWN_SECONDS
from rlhf_operator.process.metric_names import METRICS
from rlhf_operator.process.metrics import Metrics

from ..free_port import free_port

TIME = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ("team", "sort")
SORT = {"namespace": "team", "job": "sort"}


@dataclass
class Clock:
    """A clock that a test moves."""

    seconds: float = 0.0
    """Since TIME."""

    def __call__(self) -> datetime:
        return TIME + timedelta(seconds=self.seconds)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


def status(phase: JobPhase, metrics: Mapping[str, str] | None = None) -> RLHFJobStatus:
    progress = ProgressStatus(
        phase="Train",
        step=3,
        total_steps=10,
        percent=30,
        reward="0.5",
        metrics=dict(metrics or {}),
        last_report_time=TIME,
    )
    restarts = RestartStatus(drivers=1, clusters=1, total=2, by_reason={"NodeLost": 2})
    return RLHFJobStatus(phase=phase, gpus=8, progress=progress, restarts=restarts)


def series(metrics: Metrics) -> set[str]:
    """Names of all samples that are about jobs by name."""
    return {
        sample.name
        for family in metrics.registry.collect()
        for sample in family.samples
        if "job" in sample.labels
    }


def test_a_job_is_shown_by_its_status() -> None:
    metrics = Metrics(lambda: TIME)
    metrics.jobs.set_job(KEY, status(JobPhase.RUNNING), 5)
    value = metrics.registry.get_sample_value
    assert value("rlhf_job_step", SORT) == 3
    assert value("rlhf_job_reward", SORT) == 0.5
    assert value("rlhf_job_gpus", SORT) == 8 and value("rlhf_job_busy_gpus", SORT) == 0
    assert value("rlhf_job_restarts", SORT) == 2
    assert value("rlhf_job_restarts_by_reason_total", {**SORT, "reason": "NodeLost"}) == 2
    assert value("rlhf_job_last_report_timestamp_seconds", SORT) == TIME.timestamp()
    assert value("rlhf_job_tokens_per_second", SORT) is None
    assert value("rlhf_job_checkpoint_interval_steps", SORT) == 5
    assert value("rlhf_job_phase", {**SORT, "phase": "Running"}) == 1
    assert value("rlhf_operator_jobs", {"phase": "Running"}) == 1
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 0


def test_planned_and_measured_seconds_of_a_step_stand_beside_each_other() -> None:
    metrics = Metrics(lambda: TIME)
    plan = PlanStatus(placement="Colocated", step_seconds="12.5", peak_memory_bytes=1, summary="")
    known = status(JobPhase.RUNNING, metrics={"time/step": "40.2"})
    metrics.jobs.set_job(KEY, known.model_copy(update={"plan": plan}), 0)
    value = metrics.registry.get_sample_value
    assert value("rlhf_job_step_seconds", SORT) == 40.2
    assert value("rlhf_job_planned_step_seconds", SORT) == 12.5
    assert value("rlhf_job_checkpoint_interval_steps", SORT) is None
    metrics.jobs.set_job(KEY, status(JobPhase.RUNNING), 0)  # on devices of unknown speed
    assert value("rlhf_job_planned_step_seconds", SORT) is None


def test_seconds_grow_between_two_reconciles() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    loading = status(JobPhase.RUNNING).model_copy(
        update={
            "gpu_seconds": 100,
            "idle_gpu_seconds": 40,
            "gpus_accounted_time": TIME - timedelta(seconds=10),
            "phase_time": TIME - timedelta(seconds=30),
            "phase_seconds": {"Provisioning": 60, "Running": 5},
        }
    )
    metrics.jobs.set_job(KEY, loading, 0)
    value = metrics.registry.get_sample_value
    assert value("rlhf_job_gpu_seconds_total", SORT) == 180
    assert value("rlhf_job_idle_gpu_seconds_total", SORT) == 120
    clock.wait(2)
    assert value("rlhf_job_gpu_seconds_total", SORT) == 196
    assert value("rlhf_job_idle_gpu_seconds_total", SORT) == 136
    assert value("rlhf_job_phase_seconds_total", {**SORT, "phase": "Running"}) == 37
    assert value("rlhf_job_phase_seconds_total", {**SORT, "phase": "Provisioning"}) == 60
    metrics.jobs.set_job(KEY, loading.model_copy(update={"busy_gpus": 8}), 0)
    clock.wait(100)
    assert value("rlhf_job_idle_gpu_seconds_total", SORT) == 136


def test_a_counter_does_not_fall_when_a_status_comes_late() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    value = metrics.registry.get_sample_value
    running = status(JobPhase.RUNNING).model_copy(update={"phase_time": TIME})
    metrics.jobs.set_job(KEY, running, 0)
    clock.wait(10.7)
    labels = {**SORT, "phase": "Running"}
    assert value("rlhf_job_phase_seconds_total", labels) == 10, "whole seconds, as in the status"
    # It was decided two seconds before it was written.
    late = {"phase_time": TIME + timedelta(seconds=8), "phase_seconds": {"Running": 8}}
    metrics.jobs.set_job(KEY, status(JobPhase.RESTARTING).model_copy(update=late), 0)
    assert value("rlhf_job_phase_seconds_total", labels) == 10
    metrics.jobs.forget_job(KEY)
    metrics.jobs.set_job(KEY, running, 0)  # another job of this name
    assert value("rlhf_job_phase_seconds_total", labels) == 10
    clock.seconds = 3
    metrics.jobs.forget_job(KEY)
    metrics.jobs.set_job(KEY, running, 0)
    assert value("rlhf_job_phase_seconds_total", labels) == 3


def test_what_a_failure_would_lose_counts_from_the_last_checkpoint_or_start() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    running = status(JobPhase.RUNNING).model_copy(update={"phase_time": TIME})
    saved = CheckpointStatus(step=5, path="/p", time=TIME - timedelta(days=2))
    newer = CheckpointStatus(step=9, path="/p", time=TIME + timedelta(seconds=60))
    value = metrics.registry.get_sample_value
    clock.wait(100)
    for checkpoint, seconds in ((None, 100), (saved, 100), (newer, 40)):
        metrics.jobs.set_job(KEY, running.model_copy(update={"checkpoint": checkpoint}), 0)
        assert value("rlhf_job_unsaved_seconds", SORT) == seconds
    clock.wait(5)
    assert value("rlhf_job_unsaved_seconds", SORT) == 45
    metrics.jobs.set_job(KEY, status(JobPhase.SUSPENDED), 0)
    assert value("rlhf_job_unsaved_seconds", SORT) is None


def test_checkpoints_are_shown_by_the_status_and_failures_count_on_in_another_operator() -> None:
    saved = CheckpointStatus(step=5, path="/p", time=TIME)
    full = Condition(
        type=ConditionType.CHECKPOINTS_FAILING,
        status=ConditionStatus.TRUE,
        last_transition_time=TIME,
        reason="NoSpace",
        message="full",
    )
    failing = status(JobPhase.RUNNING).model_copy(
        update={"checkpoint": saved, "checkpoint_failures": 3, "conditions": (full,)}
    )
    fine = failing.model_copy(update={"conditions": (), "checkpoint_failures": 4})
    for metrics in (Metrics(lambda: TIME), Metrics(lambda: TIME)):
        value = metrics.registry.get_sample_value
        metrics.jobs.set_job(KEY, status(JobPhase.RUNNING), 0)
        assert value("rlhf_job_checkpoint_step", SORT) is None
        for now, is_failing, total in ((failing, 1, 3), (failing, 1, 3), (fine, 0, 4)):
            metrics.jobs.set_job(KEY, now, 0)
            assert value("rlhf_job_checkpoint_step", SORT) == 5
            assert value("rlhf_job_checkpoint_timestamp_seconds", SORT) == TIME.timestamp()
            assert value("rlhf_job_checkpoints_failing", SORT) == is_failing
            assert value("rlhf_job_checkpoint_failures_total", SORT) == total
        metrics.jobs.forget_job(KEY)
        metrics.jobs.set_job(KEY, failing, 0)
        assert value("rlhf_job_checkpoint_failures_total", SORT) == 3, "a new job of this name"
        metrics.jobs.forget_job(KEY)
        assert series(metrics) == set()


def test_a_job_is_in_one_phase() -> None:
    metrics = Metrics(lambda: TIME)
    for phase in (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RUNNING, JobPhase.FAILED):
        metrics.jobs.set_job(KEY, status(phase), 0)
    metrics.jobs.set_job(("team", "other"), status(JobPhase.FAILED), 0)
    value = metrics.registry.get_sample_value
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 2
    assert value("rlhf_operator_jobs", {"phase": "Running"}) == 0
    assert value("rlhf_job_phase", {**SORT, "phase": "Running"}) is None
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) == 1


def test_a_job_that_ended_long_ago_is_only_counted() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    ended = status(JobPhase.FAILED).model_copy(update={"completion_time": TIME})
    metrics.jobs.set_job(KEY, ended, 0)
    metrics.jobs.set_job(("team", "other"), status(JobPhase.RUNNING), 0)
    clock.wait(SHOWN_SECONDS - 1)
    metrics.jobs.forget_ended()
    value = metrics.registry.get_sample_value
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) == 1
    clock.wait(2)
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) is None
    metrics.jobs.forget_ended()
    metrics.jobs.set_job(KEY, ended, 0)  # another reconcile, for whatever reason
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) is None
    assert value("rlhf_job_restarts", SORT) is None
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 1
    metrics.jobs.set_job(("team", "old"), ended, 0)  # an operator that was started just now
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 2
    for name in ("sort", "other", "old"):
        metrics.jobs.forget_job(("team", name))
    assert series(metrics) == set() and value("rlhf_operator_jobs", {"phase": "Failed"}) == 0


def test_a_job_that_is_gone_leaves_no_series() -> None:
    metrics = Metrics(lambda: TIME)
    metrics.jobs.set_job(KEY, status(JobPhase.RUNNING), 0)
    metrics.jobs.set_job(("team", "bare"), RLHFJobStatus(), 0)
    for name in ("sort", "bare", "sort", "unheard-of"):
        metrics.jobs.forget_job(("team", name))
    assert series(metrics) == set()
    assert metrics.registry.get_sample_value("rlhf_operator_jobs", {"phase": "Running"}) == 0


def test_every_metric_of_the_list_is_served() -> None:
    metrics = Metrics(lambda: TIME)
    served = {
        (family.name + "_total" * (family.type == "counter"), family.type)
        for family in metrics.registry.collect()
    }
    assert served == {(metric.name, metric.kind) for metric in METRICS}


@dataclass
class Served:
    """A served operator whose state a test sets."""

    port: int
    age: float = 0.0
    is_started: bool = True
    definition_problem: str = ""

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served(free_port())
    metrics = Metrics()
    metrics.jobs.set_job(KEY, status(JobPhase.RUNNING), 0)
    health = Health(
        lambda: served.age, lambda: served.is_started, lambda: served.definition_problem
    )
    stop: Callable[[], None] = serve(served.port, metrics.registry, health)
    yield served
    stop()


def test_it_is_well(served: Served) -> None:
    assert served.get("/healthz") == served.get("/readyz") == (200, "ok\n")


def test_it_is_not_ready_before_it_watches_the_jobs_but_lives(served: Served) -> None:
    served.is_started = False
    assert served.get("/readyz")[0] == 503 and served.get("/healthz")[0] == 200


def test_it_is_not_ready_beside_another_definition_but_lives(served: Served) -> None:
    served.definition_problem = "the API server has no field .status.new"
    assert served.get("/readyz") == (503, f"{served.definition_problem}\n")
    assert served.get("/healthz")[0] == 200


def test_it_is_ill_when_kubernetes_is_silent_for_long(served: Served) -> None:
    served.age = MAX_ANSWER_AGE_SECONDS
    assert served.get("/healthz")[0] == 200
    served.age += 1
    code, words = served.get("/healthz")
    assert code == 503 and "has not answered for 301 s" in words


def test_metrics_are_served_as_prometheus_reads_them(served: Served) -> None:
    code, text = served.get("/metrics")
    assert code == 200 and 'rlhf_job_step{job="sort",namespace="team"} 3.0' in text


def test_nothing_else_is_served(served: Served) -> None:
    code, words = served.get("/debug")
    assert code == 404 and "/metrics" in words


def test_a_port_that_is_taken_is_an_error(served: Served) -> None:
    with pytest.raises(OSError):
        serve(served.port, CollectorRegistry(), Health(lambda: 0.0, lambda: True))
