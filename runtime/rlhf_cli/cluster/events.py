"""Kubernetes events about a job, its RayClusters and their pods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rlhf_cli.cluster.job_text import age, align_columns
from rlhf_cli.cluster.jobs import Job
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest


@dataclass(frozen=True)
class Event:
    """An event, with its number of occurrences."""

    last: datetime
    is_warning: bool
    about: str
    """Kind and name of the object, such as Pod/sort-1-head-x7k2p."""
    reason: str
    message: str
    count: int


def list_events(cluster: Cluster, job: Job) -> list[Event]:
    """Events about a job, the newest last."""
    events: list[Manifest] = []
    for kind in (Kind.JOB, Kind.CLUSTER, Kind.POD):
        fields = f"involvedObject.kind={kind.kind}"
        if kind is Kind.JOB:
            fields += f",involvedObject.name={job.name}"
        events += cluster.list(Kind.CORE_EVENT, job.namespace, fields=fields)
    related = [event for event in events if is_about(job, event)]
    return sorted(map(read_event, related), key=lambda event: event.last)


def is_about(job: Job, event: Manifest) -> bool:
    """True if an event is about the job, not about an earlier job of the same name."""
    about = event["involvedObject"]
    # An earlier job of the same name had another uid.
    if about["kind"] == Kind.JOB.kind:
        return (about["name"], about.get("uid", job.uid)) == (job.name, job.uid)
    # Clusters and pods have the names of an earlier job's: only the time tells them apart.
    if read_event(event).last < job.created:
        return False
    if about["kind"] == Kind.CLUSTER.kind:
        return about["name"] in job.clusters
    return any(_is_pod_of(cluster, about["name"]) for cluster in job.clusters)


def _is_pod_of(cluster: str, pod: str) -> bool:
    """True if the pod's name is one that KubeRay gives to pods of the cluster."""
    return re.fullmatch(rf"{re.escape(cluster)}-(head|.+-worker)-[a-z0-9]+", pod) is not None


def read_event(event: Manifest) -> Event:
    """Parse an event of either API (core/v1, events.k8s.io)."""
    # core/v1 has lastTimestamp and count; events.k8s.io has eventTime and a series.
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    last = next(time for time in times if time)
    about = event["involvedObject"]
    return Event(
        last=datetime.fromisoformat(last).astimezone(UTC),
        is_warning=event.get("type") == "Warning",
        about=f"{about['kind']}/{about['name']}",
        reason=event.get("reason") or "",
        message=" ".join((event.get("message") or "").split()),
        count=series.get("count") or event.get("count") or 1,
    )


def events_table(events: Sequence[Event], now: datetime) -> str:
    """A header and a line for each event, or a sentence if there are none."""
    if not events:
        return "No events: Kubernetes keeps them for about an hour.\n"
    head = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
    rows = [
        (
            age(event.last, now) + (f" (x{event.count})" if event.count > 1 else ""),
            "Warning" if event.is_warning else "Normal",
            event.reason,
            event.about,
            event.message,
        )
        for event in events
    ]
    return align_columns([head, *rows])
