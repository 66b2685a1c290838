"""Prometheus series of the jobs that exist.

They are computed at each scrape: seconds grow between two reconciles, and a job that is forgotten
leaves nothing behind.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rlhf_api.status import JobPhase, RLHFJobStatus
from rlhf_operator.process.job_samples import Sample, job_samples
from rlhf_operator.process.metric_names import JOB_METRICS, JOBS, Metric

SHOWN_SECONDS = 3600.0
"""Time for which an ended job has series: as long as the alert about its failure."""
Key = tuple[str, str]
"""Namespace and name of a job."""
Family = CounterMetricFamily | GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class _JobSeries:
    """The series of a job."""

    samples: tuple[Sample, ...]
    time: datetime
    """Time of the samples."""
    ended: datetime | None
    """End of the job. None: it has not ended."""

    def values(self, now: datetime) -> Iterator[tuple[Sample, float]]:
        """Yield the samples and their values at a time."""
        seconds = max(0.0, (now - self.time).total_seconds())
        for sample in self.samples:
            yield sample, sample.value + sample.growth * seconds

    def is_over(self, now: datetime) -> bool:
        """True if it ended too long ago to be shown."""
        return self.ended is not None and (now - self.ended).total_seconds() > SHOWN_SECONDS


class JobMetrics(Collector):
    """All jobs by phase, and the series of those that have not ended long ago.

    Its methods may be called from any thread.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._phases: dict[Key, str] = {}
        """Phases of all jobs, so that ended ones are counted as well."""
        self._series: dict[Key, _JobSeries] = {}
        self._lock = threading.Lock()

    def set_job(self, key: Key, status: RLHFJobStatus, checkpoint_steps: int) -> None:
        """Record a job's status.

        Args:
            key: namespace and name of the job.
            status: as it was written.
            checkpoint_steps: steps between checkpoints; 0: none, or unknown.
        """
        now = self._whole_second()
        samples = job_samples(status, checkpoint_steps, now)
        with self._lock:
            self._phases[key] = status.phase
            before = self._series.pop(key, None)
            if before is not None:
                samples = _never_falling(samples, before, now)
            series = _JobSeries(samples, now, status.completion_time)
            # Series of every job that ever ran would grow without bound.
            if not series.is_over(now):
                self._series[key] = series

    def forget_job(self, key: Key) -> None:
        """Remove a deleted job."""
        with self._lock:
            self._phases.pop(key, None)
            self._series.pop(key, None)

    def forget_jobs(self) -> None:
        """Remove all jobs."""
        with self._lock:
            self._phases.clear()
            self._series.clear()

    def forget_ended(self) -> None:
        """Remove the series of jobs that ended long ago; they are still counted."""
        now = self._whole_second()
        with self._lock:
            self._series = {key: job for key, job in self._series.items() if not job.is_over(now)}

    def collect(self) -> Iterator[Family]:
        """Yield all series, as Prometheus' client library asks for them."""
        with self._lock:
            phases, shown = Counter(self._phases.values()), tuple(self._series.items())
        now = self._whole_second()
        jobs = GaugeMetricFamily(JOBS.name, JOBS.help, labels=JOBS.labels)
        for phase in dict.fromkeys([*JobPhase, *phases]):
            jobs.add_metric((phase,), phases[phase])
        yield jobs
        families = {metric: _family(metric) for metric in JOB_METRICS}
        for key, job in shown:
            if job.is_over(now):
                continue
            for sample, value in job.values(now):
                labels = key if sample.label is None else (*key, sample.label)
                families[sample.metric].add_metric(labels, value)
        yield from families.values()

    def _whole_second(self) -> datetime:
        # As in the status: a counter that had grown by a part of a second would fall afterwards.
        return self._now().replace(microsecond=0)


def _never_falling(
    samples: tuple[Sample, ...], before: _JobSeries, now: datetime
) -> tuple[Sample, ...]:
    """Return samples whose counters are not below what a scrape may have read a moment ago."""
    # The status is of a moment before its write. Prometheus takes a counter that falls for one
    # that began anew, and adds all of it once more.
    scraped = {
        (sample.metric, sample.label): value
        for sample, value in before.values(now)
        if sample.metric.kind == "counter"
    }
    return tuple(
        replace(sample, value=max(sample.value, scraped.get((sample.metric, sample.label), 0.0)))
        if sample.metric.kind == "counter"
        else sample
        for sample in samples
    )


def _family(metric: Metric) -> Family:
    if metric.kind == "counter":  # the library adds the suffix of counters
        name = metric.name.removesuffix("_total")
        return CounterMetricFamily(name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
