"""From `kubectl apply` to the first training step, by phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rlhf_runtime.telemetry.run_folder import RunFolder

from .job_on_cluster import JobOnCluster


@dataclass(frozen=True)
class StartupTimes:
    """Seconds of each phase, one after the other."""

    accepted: float
    """The operator: from the apply until it began to plan."""
    planning: float
    pods: float
    """Kubernetes, KubeRay and Ray: from the RayCluster until the last pod was ready."""
    submitted: float
    """The operator: from then until it submitted the driver. A pod tells whole seconds only, so up
    to one second of `pods` is counted here."""
    head_answered_at_once: bool
    """Whether Ray's Jobs API did: where not, `submitted` is its time, too."""
    driver: float
    """Ray's Jobs API and Python: until the run began."""
    workers: Mapping[str, float]
    """Seconds of what the run did then; some of it at the same time."""
    first_step: float
    """From the run's begin to the end of its first step; with the warm start."""

    @property
    def operator(self) -> float:
        """The operator's own share, without planning; less where the head did not answer."""
        return self.accepted + (self.submitted if self.head_answered_at_once else 0.0)

    def table(self) -> str:
        """For people."""
        who = "operator" if self.head_answered_at_once else "head"
        rows = {
            "operator: accepted": self.accepted,
            "planning": self.planning,
            "pods ready": self.pods,
            f"{who}: driver submitted": self.submitted,
            "driver's start": self.driver,
            **{f"  {name}": seconds for name, seconds in self.workers.items()},
            "run to the end of step 1": self.first_step,
        }
        return "\n".join(f"{name:28s} {seconds:7.2f} s" for name, seconds in rows.items())


def startup_times(job: JobOnCluster, applied: float, folder: Path) -> StartupTimes:
    """Those of a job that has done its first step and lost no pod.

    Args:
        applied: Unix seconds when it was applied.
        folder: the run's folder, as this machine sees it.
    """
    at = {event["reason"]: _seconds(event["eventTime"]) for event in reversed(job.events())}
    ready = max(_ready(pod) for pod in job.pods())
    run = RunFolder(folder)
    records = run.read()
    begun = records.runs[0].started
    first_step = max(span.end for span in run.read_spans([1])[1])
    assert records.startup is not None
    return StartupTimes(
        accepted=at["Planning"] - applied,
        planning=at["Provisioning"] - at["Planning"],
        pods=ready - at["Provisioning"],
        submitted=at["Submitted"] - ready,
        head_answered_at_once=not at.keys() & {"HeadUnreachable", "HeadRefused"},
        driver=begun - at["Submitted"],
        workers=records.startup.phases,
        first_step=first_step - begun,
    )


def _ready(pod: Mapping[str, Any]) -> float:
    (condition,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    return _seconds(condition["lastTransitionTime"])


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
