"""What Prometheus reads: the operator's own work, and the jobs' progress with bounded labels."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rlhf_api.status import Phase, RLHFJobStatus

JOB = ("namespace", "job")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "rlhf_operator_reconcile_seconds",
            "Time of one look at a job, from reading to the last action",
            ("outcome",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "rlhf_operator_reconcile_errors",
            "Looks at a job that failed and were repeated",
            ("reason",),
            registry=self.registry,
        )
        self.api_calls = Counter(
            "rlhf_operator_api_calls",
            "Requests to Kubernetes besides watching",
            ("method",),
            registry=self.registry,
        )
        self.restarts = Counter(
            "rlhf_operator_job_restarts",
            "Restarts of jobs, by what was started again and why",
            ("kind", "reason"),
            registry=self.registry,
        )
        self._queue_depth = self._gauge(
            "rlhf_operator_queue_depth", "Jobs that wait to be looked at", ()
        )
        self._last_answer = self._gauge(
            "rlhf_operator_last_answer_seconds", "Time since Kubernetes last answered", ()
        )
        self._jobs = self._gauge("rlhf_operator_jobs", "Jobs in each phase", ("phase",))
        self._job_gauges = {
            "step": self._gauge("rlhf_job_step", "Steps done", JOB),
            "total_steps": self._gauge("rlhf_job_total_steps", "Steps to do", JOB),
            "reward": self._gauge("rlhf_job_reward", "Mean reward of the last step", JOB),
            "tokens": self._gauge(
                "rlhf_job_tokens_per_second", "Tokens per second of the last step", JOB
            ),
            "gpus": self._gauge("rlhf_job_gpus", "GPUs that the job holds", JOB),
            "report": self._gauge(
                "rlhf_job_last_report_timestamp_seconds",
                "Unix time of the driver's last accepted report",
                JOB,
            ),
        }
        self._phase = self._gauge("rlhf_job_phase", "1 in the job's phase", (*JOB, "phase"))
        self._phases: dict[tuple[str, str], Phase] = {}

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def watch(self, queue_depth: Callable[[], int], answer_age: Callable[[], float]) -> None:
        """Where two of the values come from whenever Prometheus asks."""
        self._queue_depth.set_function(queue_depth)
        self._last_answer.set_function(answer_age)

    def asked(self, method: str) -> None:
        """A request to Kubernetes is made."""
        self.api_calls.labels(method).inc()

    def show_job(self, namespace: str, job: str, status: RLHFJobStatus) -> None:
        """A job's status, as gauges."""
        self._enter(namespace, job, status.phase)
        self._job_gauges["gpus"].labels(namespace, job).set(status.gpus)
        progress = status.progress
        if progress is None:
            return
        values = {
            "step": progress.step,
            "total_steps": progress.total_steps,
            "reward": None if progress.reward is None else float(progress.reward),
            "tokens": progress.tokens_per_second,
            "report": progress.last_report_time.timestamp(),
        }
        for name, value in values.items():
            if value is not None:
                self._job_gauges[name].labels(namespace, job).set(value)

    def forget_job(self, namespace: str, job: str) -> None:
        """A job is gone: so are its series."""
        before = self._phases.pop((namespace, job), None)
        if before is None:
            return
        self._jobs.labels(before.value).dec()
        self._remove(self._phase, namespace, job, before.value)
        for gauge in self._job_gauges.values():
            self._remove(gauge, namespace, job)

    def _enter(self, namespace: str, job: str, phase: Phase) -> None:
        before = self._phases.get((namespace, job))
        if before is phase:
            return
        if before is not None:
            self._jobs.labels(before.value).dec()
            self._remove(self._phase, namespace, job, before.value)
        self._phases[namespace, job] = phase
        self._jobs.labels(phase.value).inc()
        self._phase.labels(namespace, job, phase.value).set(1)

    @staticmethod
    def _remove(gauge: Gauge, *labels: str) -> None:
        try:
            gauge.remove(*labels)
        except KeyError:  # it never had a value
            return
