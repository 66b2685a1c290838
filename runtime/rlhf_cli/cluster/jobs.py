"""An RLHFJob on a cluster, and its lookup by name."""

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
from rlhf_cli.cluster.errors import JobNotFound
from rlhf_kube.errors import KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest

FAILURE_CODES = (ExitCode.BUG, ExitCode.MANIFEST, ExitCode.USER, ExitCode.RETRIABLE)
"""Driver exit codes that a waiting command passes on."""


@dataclass(frozen=True)
class Job:
    """An RLHFJob as the cluster stores it."""

    document: Manifest
    """The full object."""
    name: str
    namespace: str
    uid: str
    created: datetime
    is_deleted: bool
    """True if its deletion has begun."""
    is_suspended: bool
    """True if spec.suspend is set."""
    status: RLHFJobStatus

    @property
    def command_arguments(self) -> str:
        """Command-line arguments that identify the job from any namespace."""
        return f"{self.name} -n {self.namespace}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec with the CRD's defaults, by wire names."""
        spec: Mapping[str, Any] = self.document["spec"]
        return spec

    @property
    def stalled(self) -> str:
        """Reason and message of a Stalled job; else empty."""
        for condition in self.status.conditions:
            # A condition may also be there with status False.
            holds = condition.status is ConditionStatus.TRUE
            if condition.type is ConditionType.STALLED and holds:
                return f"{condition.reason}: {condition.message}"
        return ""

    @property
    def is_observed(self) -> bool:
        """True if the status describes the newest spec."""
        generation: int = self.document["metadata"].get("generation", 0)
        return self.status.observed_generation >= generation

    @property
    def has_ended(self) -> bool:
        """True if it has succeeded or failed."""
        return self.status.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)

    @property
    def exit_code(self) -> ExitCode | None:
        """Exit code of a command that waited for the job; None if the job may still go on.

        A failed job gives its driver's code if that names a cause, else 4. A stalled job gives 2.
        """
        if self.status.phase is JobPhase.SUCCEEDED:
            return ExitCode.DONE
        if self.status.phase is JobPhase.FAILED:
            driver = self.status.driver
            code = None if driver is None else driver.exit_code
            return ExitCode(code) if code in FAILURE_CODES else ExitCode.RETRIABLE
        # A stall of an older spec may be resolved by the newest.
        return ExitCode.MANIFEST if self.stalled and self.is_observed else None

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of all its RayClusters, the newest last."""
        return tuple(
            cluster_name(self.name, attempt + 1) for attempt in range(self.status.attempts)
        )


def read_job(document: Manifest) -> Job:
    """Parse an RLHFJob. Status fields of other versions are ignored."""
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
    """A job's name without the prefix that `kubectl get -o name` prints."""
    return name.rpartition("/")[2]


def find_job(cluster: Cluster, name: str) -> Job:
    """Read a job of the default namespace.

    Raises:
        JobNotFound: it does not exist; the message suggests similar names.
    """
    document = cluster.get(Kind.JOB, cluster.namespace, plain_name(name))
    if document is None:
        raise job_not_found(cluster, plain_name(name))
    return read_job(document)


def job_not_found(cluster: Cluster, name: str) -> JobNotFound:
    """Build the error that lists jobs of similar name and of other namespaces."""
    namespace = cluster.namespace
    here, elsewhere = _names(cluster, namespace), _namespaces_with(cluster, name)
    near = nearest(name, here)
    if elsewhere:
        do = f"it is in namespace {' and '.join(elsewhere)}: give -n {elsewhere[0]}"
    elif near:
        do = f"did you mean {near}?"
    elif here:
        do = f"allowed {', '.join(sorted(here)[:10])}; `rlhf status` lists them"
    else:
        do = "the namespace has no jobs; `rlhf status --all-namespaces` lists those of others"
    return JobNotFound(f"no such job: got {name} in namespace {namespace}; {do}")


def _names(cluster: Cluster, namespace: str) -> list[str]:
    # The names only improve an error message, so a failure to list them is ignored.
    with suppress(KubeError):
        return [document["metadata"]["name"] for document in cluster.list(Kind.JOB, namespace)]
    return []


def _namespaces_with(cluster: Cluster, name: str) -> list[str]:
    # Most users may not list jobs of other namespaces.
    with suppress(KubeError):
        matches = cluster.list(Kind.JOB, None, fields=f"metadata.name={name}")
        return sorted(document["metadata"]["namespace"] for document in matches)
    return []
