"""Names, labels and help of the operator's metrics. Alerts and dashboard of the chart use these.

Labels are bounded: `namespace` and `job` by the jobs that exist, the others by enumerations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Metric:
    """One metric of Prometheus."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    """Meaning and unit."""


RECONCILE_SECONDS: Final = Metric(
    "rlhf_operator_reconcile_seconds",
    "histogram",
    ("outcome",),
    "Seconds of one reconcile of a job, with all its requests.",
)
RECONCILE_ERRORS: Final = Metric(
    "rlhf_operator_reconcile_errors_total",
    "counter",
    ("reason",),
    "Failed reconciles of a job; they are tried again.",
)
API_CALLS: Final = Metric(
    "rlhf_operator_api_calls_total",
    "counter",
    ("method",),
    "Requests to the API server, without watches.",
)
JOBS: Final = Metric("rlhf_operator_jobs", "gauge", ("phase",), "Jobs that exist, by phase.")
RESTARTS: Final = Metric(
    "rlhf_operator_job_restarts_total",
    "counter",
    ("kind", "reason"),
    "Restarts of jobs: of incarnations, drivers or clusters, and why.",
)
QUEUE_DEPTH: Final = Metric(
    "rlhf_operator_queue_depth", "gauge", (), "Jobs that wait to be reconciled."
)
LAST_ANSWER_SECONDS: Final = Metric(
    "rlhf_operator_last_answer_seconds",
    "gauge",
    (),
    "Seconds since the API server last answered a request.",
)

WATCHED: Final = Metric(
    "rlhf_operator_namespace_watched",
    "gauge",
    ("namespace",),
    "1 if the namespace is watched, 0 if it or the operator's role in it is lost.",
)

_JOB: Final = ("namespace", "job")
JOB_STEP: Final = Metric("rlhf_job_step", "gauge", _JOB, "Steps done.")
JOB_TOTAL_STEPS: Final = Metric("rlhf_job_total_steps", "gauge", _JOB, "Steps to do.")
JOB_REWARD: Final = Metric("rlhf_job_reward", "gauge", _JOB, "Mean reward of the last step.")
JOB_TOKENS_PER_SECOND: Final = Metric(
    "rlhf_job_tokens_per_second",
    "gauge",
    _JOB,
    "Prompt and response tokens per second of the last step.",
)
JOB_GPUS: Final = Metric("rlhf_job_gpus", "gauge", _JOB, "GPUs that the job's pods occupy.")
JOB_BUSY_GPUS: Final = Metric(
    "rlhf_job_busy_gpus",
    "gauge",
    _JOB,
    "The same while the workers train; 0 while they wait, start or load.",
)
JOB_GPU_SECONDS: Final = Metric(
    "rlhf_job_gpu_seconds_total", "counter", _JOB, "GPUs times seconds that the pods occupied them."
)
JOB_IDLE_GPU_SECONDS: Final = Metric(
    "rlhf_job_idle_gpu_seconds_total",
    "counter",
    _JOB,
    "The part of rlhf_job_gpu_seconds_total in which the GPUs were not busy.",
)
JOB_PHASE_SECONDS: Final = Metric(
    "rlhf_job_phase_seconds_total",
    "counter",
    (*_JOB, "phase"),
    "Seconds that the job was in the phase; those of its end are not counted.",
)
JOB_STEP_SECONDS: Final = Metric(
    "rlhf_job_step_seconds", "gauge", _JOB, "Seconds of the last step."
)
JOB_PLANNED_STEP_SECONDS: Final = Metric(
    "rlhf_job_planned_step_seconds",
    "gauge",
    _JOB,
    "Seconds of a step as the plan expects them; absent for devices of unknown speed.",
)
JOB_RESTARTS: Final = Metric(
    "rlhf_job_restarts", "gauge", _JOB, "Restarts so far: of workers, drivers and clusters."
)
JOB_RESTARTS_BY_REASON: Final = Metric(
    "rlhf_job_restarts_by_reason_total",
    "counter",
    (*_JOB, "reason"),
    "The same by reason: 16 reasons of a job at most, the last of which is Other.",
)
JOB_LAST_REPORT: Final = Metric(
    "rlhf_job_last_report_timestamp_seconds",
    "gauge",
    _JOB,
    "Time of the driver's last report, in seconds since 1970.",
)
JOB_CHECKPOINT_STEP: Final = Metric(
    "rlhf_job_checkpoint_step", "gauge", _JOB, "Steps in the newest checkpoint."
)
JOB_CHECKPOINT_TIME: Final = Metric(
    "rlhf_job_checkpoint_timestamp_seconds",
    "gauge",
    _JOB,
    "Time of the newest checkpoint, in seconds since 1970.",
)
JOB_CHECKPOINT_INTERVAL: Final = Metric(
    "rlhf_job_checkpoint_interval_steps",
    "gauge",
    _JOB,
    "Steps between two checkpoints, as the job asks for them; absent if it asks for none.",
)
JOB_UNSAVED_SECONDS: Final = Metric(
    "rlhf_job_unsaved_seconds",
    "gauge",
    _JOB,
    "While the job runs, seconds since its newest checkpoint, or since it began to run.",
)
JOB_CHECKPOINTS_FAILING: Final = Metric(
    "rlhf_job_checkpoints_failing",
    "gauge",
    _JOB,
    "1 while the job's condition CheckpointsFailing is true, else 0.",
)
JOB_CHECKPOINT_FAILURES: Final = Metric(
    "rlhf_job_checkpoint_failures_total",
    "counter",
    _JOB,
    "Checkpoints that could not be written since the job was created.",
)
JOB_PHASE: Final = Metric(
    "rlhf_job_phase",
    "gauge",
    (*_JOB, "phase"),
    "1 for the job's current phase.",
)

OPERATOR_METRICS: Final = (
    RECONCILE_SECONDS,
    RECONCILE_ERRORS,
    API_CALLS,
    JOBS,
    RESTARTS,
    QUEUE_DEPTH,
    LAST_ANSWER_SECONDS,
    WATCHED,
)
JOB_METRICS: Final = (
    JOB_STEP,
    JOB_TOTAL_STEPS,
    JOB_REWARD,
    JOB_TOKENS_PER_SECOND,
    JOB_STEP_SECONDS,
    JOB_PLANNED_STEP_SECONDS,
    JOB_GPUS,
    JOB_BUSY_GPUS,
    JOB_GPU_SECONDS,
    JOB_IDLE_GPU_SECONDS,
    JOB_PHASE,
    JOB_PHASE_SECONDS,
    JOB_RESTARTS,
    JOB_RESTARTS_BY_REASON,
    JOB_LAST_REPORT,
    JOB_CHECKPOINT_STEP,
    JOB_CHECKPOINT_TIME,
    JOB_CHECKPOINT_INTERVAL,
    JOB_UNSAVED_SECONDS,
    JOB_CHECKPOINTS_FAILING,
    JOB_CHECKPOINT_FAILURES,
)
"""Series of jobs by name."""
METRICS: Final = (*OPERATOR_METRICS, *JOB_METRICS)
