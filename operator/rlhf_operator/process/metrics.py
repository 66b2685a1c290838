"""Prometheus metrics of the operator's own work and of the jobs' progress."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rlhf_operator.process import metric_names as names
from rlhf_operator.process.job_metrics import JobMetrics
from rlhf_operator.process.metric_names import Metric

MAX_REASONS = 100
"""Reasons of restarts with their own series; others share one. Drivers choose the reasons, so their
number must be bounded here."""
OTHER = "Other"
"""Label of all other reasons."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def utc_now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


class Metrics:
    """The operator's metrics, in their own registry."""

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
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
        self.jobs = JobMetrics(now)
        self.registry.register(self.jobs)

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
