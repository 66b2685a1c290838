"""A job as the cluster has it, and how it is found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import cluster_name
from rlhf_api.reading.status import read_status
from rlhf_api.reading.suggestions import nearest
from rlhf_api.status import ConditionStatus, ConditionType, JobPhase, RLHFJobStatus
from rlhf_cli.cluster.client import Cluster, Object
from rlhf_cli.cluster.errors import ClusterError, JobNotFound, ObjectNotFound
from rlhf_kube.kinds import Kind

OF_A_FAILURE = (ExitCode.BUG, ExitCode.MANIFEST, ExitCode.USER, ExitCode.RETRIABLE)
"""Exit codes of a driver that mean the same when a command ends with them."""


@dataclass(frozen=True)
class Job:
    """A job as the cluster has it."""

    document: Object
    """The whole object."""
    name: str
    namespace: str
    uid: str
    created: datetime
    is_deleted: bool
    """Whether it is being deleted."""
    is_suspended: bool
    """Whether its spec tells it to wait."""
    status: RLHFJobStatus

    @property
    def arguments(self) -> str:
        """By which the commands find it, whatever the current namespace is."""
        return f"{self.name} -n {self.namespace}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec by wire names, as the user wrote it, with the definition's defaults."""
        spec: Mapping[str, Any] = self.document["spec"]
        return spec

    @property
    def stalled(self) -> str:
        """Why it cannot go on without a change; empty if it can, or has ended."""
        for condition in self.status.conditions:
            holds = condition.status is ConditionStatus.TRUE
            if condition.type is ConditionType.STALLED and holds:
                return f"{condition.reason}: {condition.message}"
        return ""

    @property
    def is_observed(self) -> bool:
        """Whether its status is about its newest spec."""
        generation: int = self.document["metadata"].get("generation", 0)
        return self.status.observed_generation >= generation

    @property
    def has_ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)

    @property
    def exit_code(self) -> ExitCode | None:
        """What a command that waited for it ends with; None while it goes on, or may.

        Failed: its driver's, where that says whose fault it was, else 4. Stalled: 2.
        """
        if self.status.phase is JobPhase.SUCCEEDED:
            return ExitCode.DONE
        if self.status.phase is JobPhase.FAILED:
            driver = self.status.driver
            code = None if driver is None else driver.exit_code
            return ExitCode(code) if code in OF_A_FAILURE else ExitCode.RETRIABLE
        return ExitCode.MANIFEST if self.stalled and self.is_observed else None

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of the RayClusters that it has and had, the newest last."""
        return tuple(cluster_name(self.name, each + 1) for each in range(self.status.attempts))


def read_job(document: Object) -> Job:
    """Read an RLHFJob. What this version does not know of its status is passed over."""
    meta = document["metadata"]
    return Job(
        document=document,
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        created=datetime.fromisoformat(meta["creationTimestamp"]).astimezone(UTC),
        is_deleted="deletionTimestamp" in meta,
        is_suspended=bool(document["spec"].get("suspend", False)),
        status=read_status(document.get("status")),
    )


def plain_name(name: str) -> str:
    """A job's name, also where it was given as `kubectl get -o name` prints it."""
    return name.rpartition("/")[2]


def find_job(cluster: Cluster, name: str) -> Job:
    """A job of the namespace that is meant.

    Raises:
        JobNotFound: there is none; the message names what is near.
    """
    try:
        return read_job(cluster.get(Kind.JOB, cluster.namespace, plain_name(name)))
    except ObjectNotFound as error:
        raise missing_job(cluster, plain_name(name)) from error


def missing_job(cluster: Cluster, name: str) -> JobNotFound:
    """The error that says what there is instead of a job."""
    namespace = cluster.namespace
    here, elsewhere = _names(cluster, namespace), _places(cluster, name)
    near = nearest(name, here)
    if elsewhere:
        do = f"it is in namespace {' and '.join(elsewhere)}: give -n {elsewhere[0]}"
    elif near:
        do = f"did you mean {near}?"
    elif here:
        do = f"allowed {', '.join(sorted(here)[:10])}; `rlhf status` lists them"
    else:
        do = "it has none; `rlhf status --all-namespaces` lists those of others"
    return JobNotFound(f"no such job: got {name} in namespace {namespace}; {do}")


def _names(cluster: Cluster, namespace: str) -> list[str]:
    with suppress(ClusterError):  # this only helps
        return [each["metadata"]["name"] for each in cluster.list(Kind.JOB, namespace).items]
    return []


def _places(cluster: Cluster, name: str) -> list[str]:
    with suppress(ClusterError):  # most users may not
        found = cluster.list(Kind.JOB, None, fields=f"metadata.name={name}").items
        return sorted(each["metadata"]["namespace"] for each in found)
    return []
