"""Values of one job's series, from its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from rlhf_api.status import ConditionType, JobPhase, RLHFJobStatus
from rlhf_operator.decide.predicates import FINAL_PHASES, find_condition
from rlhf_operator.process import metric_names as names
from rlhf_operator.process.metric_names import Metric

STEP_TIME = "time/step"
"""Metric of a report: seconds of its last step."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Value of one series at the time of a status."""

    metric: Metric
    value: float
    label: str | None = None
    """Value of the label besides namespace and job. None: there is no such label."""
    growth: float = 0.0
    """Increase of the value per second, until another status is recorded."""


def job_samples(status: RLHFJobStatus, checkpoint_steps: int, now: datetime) -> tuple[Sample, ...]:
    """Return the values of a job's series.

    Args:
        checkpoint_steps: steps between checkpoints that the job asks for; 0: none, or unknown.
    """
    return tuple(
        sample
        for samples in (
            _state(status),
            _times(status, now),
            _progress(status),
            _checkpoints(status, checkpoint_steps, now),
        )
        for sample in samples
    )


def _state(status: RLHFJobStatus) -> Iterator[Sample]:
    yield Sample(names.JOB_PHASE, 1, status.phase)
    yield Sample(names.JOB_GPUS, status.gpus)
    yield Sample(names.JOB_BUSY_GPUS, status.busy_gpus)
    yield Sample(names.JOB_RESTARTS, status.restarts.total)
    for reason, number in status.restarts.by_reason.items():
        yield Sample(names.JOB_RESTARTS_BY_REASON, number, reason)


def _times(status: RLHFJobStatus, now: datetime) -> Iterator[Sample]:
    held = _seconds_between(status.gpus_accounted_time, now)
    idle = status.gpus - status.busy_gpus
    yield Sample(names.JOB_GPU_SECONDS, status.gpu_seconds + held * status.gpus, growth=status.gpus)
    yield Sample(names.JOB_IDLE_GPU_SECONDS, status.idle_gpu_seconds + held * idle, growth=idle)
    seconds: dict[str, float] = {**status.phase_seconds}
    current = None if status.phase in FINAL_PHASES else status.phase
    if current is not None:
        since = _seconds_between(status.phase_time, now)
        seconds[current] = seconds.get(current, 0) + since
    for phase, value in seconds.items():
        yield Sample(names.JOB_PHASE_SECONDS, value, phase, growth=float(phase == current))


def _progress(status: RLHFJobStatus) -> Iterator[Sample]:
    if status.plan is not None and status.plan.step_seconds is not None:
        yield Sample(names.JOB_PLANNED_STEP_SECONDS, float(status.plan.step_seconds))
    progress = status.progress
    if progress is None:
        return
    yield Sample(names.JOB_STEP, progress.step)
    yield Sample(names.JOB_TOTAL_STEPS, progress.total_steps)
    yield Sample(names.JOB_LAST_REPORT, progress.last_report_time.timestamp())
    if progress.reward is not None:
        yield Sample(names.JOB_REWARD, float(progress.reward))
    if progress.tokens_per_second is not None:
        yield Sample(names.JOB_TOKENS_PER_SECOND, progress.tokens_per_second)
    if STEP_TIME in progress.metrics:
        yield Sample(names.JOB_STEP_SECONDS, float(progress.metrics[STEP_TIME]))


def _checkpoints(status: RLHFJobStatus, every_steps: int, now: datetime) -> Iterator[Sample]:
    is_failing = find_condition(status, ConditionType.CHECKPOINTS_FAILING) is not None
    yield Sample(names.JOB_CHECKPOINTS_FAILING, is_failing)
    yield Sample(names.JOB_CHECKPOINT_FAILURES, status.checkpoint_failures)
    if every_steps:
        yield Sample(names.JOB_CHECKPOINT_INTERVAL, every_steps)
    saved, begin = status.checkpoint, status.phase_time
    if saved is not None:
        yield Sample(names.JOB_CHECKPOINT_STEP, saved.step)
        if saved.time is not None:
            yield Sample(names.JOB_CHECKPOINT_TIME, saved.time.timestamp())
            # A job that resumes after a long suspension has lost nothing by the suspension.
            begin = None if begin is None else max(begin, saved.time)
    if status.phase is JobPhase.RUNNING and begin is not None:
        yield Sample(names.JOB_UNSAVED_SECONDS, _seconds_between(begin, now), growth=1.0)


def _seconds_between(begin: datetime | None, now: datetime) -> float:
    # The clock that wrote the time may be ahead of this one.
    return 0.0 if begin is None else max(0.0, (now - begin).total_seconds())
