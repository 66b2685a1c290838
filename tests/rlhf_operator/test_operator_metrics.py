"""What the operator serves about itself and its jobs."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
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
    ProgressStatus,
    RestartStatus,
    RLHFJobStatus,
)
from rlhf_operator.process.health import MAX_ANSWER_AGE_SECONDS, Health, serve
from rlhf_operator.process.metrics import SHOWN_SECONDS, Metrics

from ..free_port import free_port

TIME = datetime(2026, 1, 1, tzinfo=UTC)
SORT = {"namespace": "team", "job": "sort"}


def status(phase: JobPhase, step: int = 3, reward: str | None = "0.5") -> RLHFJobStatus:
    progress = ProgressStatus(
        phase="Train", step=step, total_steps=10, percent=30, reward=reward, last_report_time=TIME
    )
    restarts = RestartStatus(drivers=1, clusters=1, total=2)
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
    metrics = Metrics()
    metrics.set_job("team", "sort", status(JobPhase.RUNNING), TIME)
    value = metrics.registry.get_sample_value
    assert value("rlhf_job_step", SORT) == 3
    assert value("rlhf_job_reward", SORT) == 0.5
    assert value("rlhf_job_gpus", SORT) == 8
    assert value("rlhf_job_restarts", SORT) == 2
    assert value("rlhf_job_last_report_timestamp_seconds", SORT) == TIME.timestamp()
    assert value("rlhf_job_tokens_per_second", SORT) is None
    assert value("rlhf_job_phase", {**SORT, "phase": "Running"}) == 1
    assert value("rlhf_operator_jobs", {"phase": "Running"}) == 1


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
    for metrics in (Metrics(), Metrics()):
        value = metrics.registry.get_sample_value
        metrics.set_job("team", "sort", status(JobPhase.RUNNING), TIME)
        assert value("rlhf_job_checkpoint_step", SORT) is None
        for now, is_failing, total in ((failing, 1, 3), (failing, 1, 3), (fine, 0, 4)):
            metrics.set_job("team", "sort", now, TIME)
            assert value("rlhf_job_checkpoint_step", SORT) == 5
            assert value("rlhf_job_checkpoint_timestamp_seconds", SORT) == TIME.timestamp()
            assert value("rlhf_job_checkpoints_failing", SORT) == is_failing
            assert value("rlhf_job_checkpoint_failures_total", SORT) == total
        metrics.forget_job("team", "sort")
        metrics.set_job("team", "sort", failing, TIME)
        assert value("rlhf_job_checkpoint_failures_total", SORT) == 3, "a new job of this name"
        metrics.forget_job("team", "sort")
        assert series(metrics) == set()


def test_a_job_is_in_one_phase() -> None:
    metrics = Metrics()
    for phase in (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RUNNING, JobPhase.FAILED):
        metrics.set_job("team", "sort", status(phase), TIME)
    metrics.set_job("team", "other", status(JobPhase.FAILED), TIME)
    value = metrics.registry.get_sample_value
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 2
    assert value("rlhf_operator_jobs", {"phase": "Running"}) == 0
    assert value("rlhf_job_phase", {**SORT, "phase": "Running"}) is None
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) == 1


def test_a_job_that_ended_long_ago_is_only_counted() -> None:
    metrics = Metrics()
    ended = status(JobPhase.FAILED).model_copy(update={"completion_time": TIME})
    soon, late = (TIME + timedelta(seconds=SHOWN_SECONDS + each) for each in (-1, 1))
    metrics.set_job("team", "sort", ended, TIME)
    metrics.set_job("team", "other", status(JobPhase.RUNNING), TIME)
    metrics.forget_ended(soon)
    value = metrics.registry.get_sample_value
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) == 1
    metrics.forget_ended(late)
    metrics.set_job("team", "sort", ended, late)  # another reconcile, for whatever reason
    assert value("rlhf_job_phase", {**SORT, "phase": "Failed"}) is None
    assert value("rlhf_job_restarts", SORT) is None
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 1
    metrics.set_job("team", "old", ended, late)  # an operator that was started just now
    assert value("rlhf_operator_jobs", {"phase": "Failed"}) == 2
    for name in ("sort", "other", "old"):
        metrics.forget_job("team", name)
    assert series(metrics) == set() and value("rlhf_operator_jobs", {"phase": "Failed"}) == 0


def test_a_job_that_is_gone_leaves_no_series() -> None:
    metrics = Metrics()
    metrics.set_job("team", "sort", status(JobPhase.RUNNING), TIME)
    metrics.set_job("team", "bare", RLHFJobStatus(), TIME)
    for name in ("sort", "bare", "sort", "unheard-of"):
        metrics.forget_job("team", name)
    assert series(metrics) == set()
    assert metrics.registry.get_sample_value("rlhf_operator_jobs", {"phase": "Running"}) == 0


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
    metrics.set_job("team", "sort", status(JobPhase.RUNNING), TIME)
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
