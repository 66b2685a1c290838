"""Prometheus metrics of the operator's own work and of the jobs' progress."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rlhf_api.status import ConditionType, RLHFJobStatus
from rlhf_operator.decide.predicates import find_condition
from rlhf_operator.process import metric_names as names
from rlhf_operator.process.metric_names import Metric

MAX_REASONS = 100
"""Reasons of restarts with their own series; others share one. Drivers choose the reasons, so their
number must be bounded here."""
OTHER = "Other"
"""Label of all other reasons."""
SHOWN_SECONDS = 3600.0
"""Time for which an ended job has series: as long as the alert about its failure."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
JOB_GAUGES = (
    names.JOB_STEP,
    names.JOB_TOTAL_STEPS,
    names.JOB_REWARD,
    names.JOB_TOKENS_PER_SECOND,
    names.JOB_GPUS,
    names.JOB_RESTARTS,
    names.JOB_LAST_REPORT,
    names.JOB_CHECKPOINT_STEP,
    names.JOB_CHECKPOINT_TIME,
    names.JOB_CHECKPOINTS_FAILING,
)


class Metrics:
    """The operator's metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            names.RECONCILE_SECONDS.name,
            names.RECONCILE_SECONDS.help,
            names.RECONCILE_SECONDS.labels,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.reconcile_errors = self._counter(names.RECONCILE_ERRORS)
        self.api_calls = self._counter(names.API_CALLS)
        self._restarts = self._counter(names.RESTARTS)
        self._reasons: set[str] = set()
        self._queue_depth = self._gauge(names.QUEUE_DEPTH)
        self._last_answer = self._gauge(names.LAST_ANSWER_SECONDS)
        self._watched = self._gauge(names.WATCHED)
        self._jobs = self._gauge(names.JOBS)
        self._phase = self._gauge(names.JOB_PHASE)
        self._job_gauges = {metric: self._gauge(metric) for metric in JOB_GAUGES}
        self._checkpoint_failures = self._counter(names.JOB_CHECKPOINT_FAILURES)
        self._counted_failures: dict[tuple[str, str], int] = {}
        self._ended: dict[tuple[str, str], datetime] = {}
        """End of the ended jobs that still have series."""
        self._phases: dict[tuple[str, str], str] = {}

    def _counter(self, metric: Metric) -> Counter:
        name = metric.name.removesuffix("_total")  # the library adds it
        return Counter(name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)

    def set_sources(self, queue_depth: Callable[[], int], answer_age: Callable[[], float]) -> None:
        """Set the functions that return two of the values at every scrape."""
        self._queue_depth.set_function(queue_depth)
        self._last_answer.set_function(answer_age)

    def set_watched(self, namespace: str, is_watched: bool) -> None:
        """Record if a namespace, or all of them, is watched."""
        self._watched.labels(namespace).set(is_watched)

    def count_request(self, method: str) -> None:
        """Count a request to Kubernetes."""
        self.api_calls.labels(method).inc()

    def count_restarts(self, kind: str, reason: str, number: int) -> None:
        """Count restarts of one kind and reason."""
        if reason not in self._reasons and len(self._reasons) >= MAX_REASONS:
            reason = OTHER
        self._reasons.add(reason)
        self._restarts.labels(kind, reason).inc(number)

    def set_job(self, namespace: str, job: str, status: RLHFJobStatus, now: datetime) -> None:
        """Set a job's gauges by its status; a job that ended long ago is only counted."""
        key, ended = (namespace, job), status.completion_time
        is_over = ended is not None and (now - ended).total_seconds() > SHOWN_SECONDS
        self._set_phase(namespace, job, status.phase, is_over)
        # Series of every job that ever ran would grow without bound.
        if is_over:
            self._remove_series(namespace, job)
            return
        self._ended.pop(key, None)  # that of a deleted job of this name
        if ended is not None:
            self._ended[key] = ended
        is_failing = find_condition(status, ConditionType.CHECKPOINTS_FAILING) is not None
        values: dict[Metric, float | None] = {
            names.JOB_GPUS: status.gpus,
            names.JOB_RESTARTS: status.restarts.total,
            names.JOB_CHECKPOINTS_FAILING: is_failing,
        }
        saved = status.checkpoint
        if saved is not None:
            values[names.JOB_CHECKPOINT_STEP] = saved.step
            time = saved.time
            values[names.JOB_CHECKPOINT_TIME] = None if time is None else time.timestamp()
        self._count_failures(key, status.checkpoint_failures)
        progress = status.progress
        if progress is not None:
            values |= {
                names.JOB_STEP: progress.step,
                names.JOB_TOTAL_STEPS: progress.total_steps,
                names.JOB_REWARD: None if progress.reward is None else float(progress.reward),
                names.JOB_TOKENS_PER_SECOND: progress.tokens_per_second,
                names.JOB_LAST_REPORT: progress.last_report_time.timestamp(),
            }
        for metric, gauge in self._job_gauges.items():
            value = values.get(metric)
            if value is None:  # the value of a deleted job of this name may be left
                self._remove(gauge, namespace, job)
            else:
                gauge.labels(namespace, job).set(value)

    def _count_failures(self, key: tuple[str, str], total: int) -> None:
        # The status has the total: the counter goes on where that of another operator has ended.
        more = total - self._counted_failures.get(key, 0)
        self._counted_failures[key] = total
        self._checkpoint_failures.labels(*key).inc(max(0, more))

    def forget_job(self, namespace: str, job: str) -> None:
        """Remove the series of a deleted job."""
        before = self._phases.pop((namespace, job), None)
        if before is None:
            return
        self._jobs.labels(before).dec()
        self._remove(self._phase, namespace, job, before)
        self._remove_series(namespace, job)

    def forget_jobs(self) -> None:
        """Remove the series of all jobs."""
        for key in list(self._phases):
            self.forget_job(*key)

    def forget_ended(self, now: datetime) -> None:
        """Remove the series of jobs that ended long ago; they are still counted."""
        for (namespace, job), ended in list(self._ended.items()):
            if (now - ended).total_seconds() > SHOWN_SECONDS:
                self._remove(self._phase, namespace, job, self._phases[namespace, job])
                self._remove_series(namespace, job)

    def _remove_series(self, namespace: str, job: str) -> None:
        self._ended.pop((namespace, job), None)
        self._counted_failures.pop((namespace, job), None)
        for gauge in self._job_gauges.values():
            self._remove(gauge, namespace, job)
        self._remove(self._checkpoint_failures, namespace, job)

    def _set_phase(self, namespace: str, job: str, phase: str, is_over: bool) -> None:
        # A job counts in one phase: leave the one before, whose series would else stay at 1.
        before = self._phases.get((namespace, job))
        if before == phase and not is_over:
            return
        if before is not None:
            self._jobs.labels(before).dec()
            self._remove(self._phase, namespace, job, before)
        self._phases[namespace, job] = phase
        self._jobs.labels(phase).inc()
        if not is_over:
            self._phase.labels(namespace, job, phase).set(1)

    @staticmethod
    def _remove(metric: Gauge | Counter, *labels: str) -> None:
        try:
            metric.remove(*labels)
        except KeyError:  # it never had a value
            return
