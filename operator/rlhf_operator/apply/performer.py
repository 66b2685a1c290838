"""Perform a decision's Kubernetes actions and record events. Every action is idempotent."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.on_cluster import JOB_LABEL, KEY_ANNOTATION, KUBERAY, RELEASE_ANNOTATION
from rlhf_kube.errors import Invalid, KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube, Manifest
from rlhf_operator.apply.build.eviction import disruption_budget
from rlhf_operator.apply.build.log_fields import with_log_fields
from rlhf_operator.apply.build.owned_objects import config_map, network_policy, secret, token
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.ray_cluster import ray_cluster
from rlhf_operator.decide.actions import (
    CreateCluster,
    DeleteCluster,
    DeletePod,
    JobEvent,
    KubeAction,
    ReleaseWorkers,
    RestoreOwnedObjects,
)
from rlhf_operator.decide.api_errors import KubeRayTooOld
from rlhf_operator.decide.observed import ObservedJob
from rlhf_operator.identity import Identity

log = logging.getLogger(__name__)
REPORTER = "rlhf-operator"
MAX_EVENT_BYTES = 1024
"""Limit of an event's text in API servers."""


@dataclass
class Performer:
    """Performs actions and records events."""

    kube: Kube
    identity: Identity
    operator_namespace: str | None
    """Namespace whose operator pods the NetworkPolicies admit. None: it is outside the cluster."""
    from_anywhere: bool = False
    """True if the NetworkPolicies admit everybody to a head's ports, for the API server's proxy."""
    has_json_logs: bool = False
    """True if drivers and workers of jobs log JSON objects."""

    def perform(self, job: ObservedJob, action: KubeAction) -> None:
        """Perform one action.

        Raises:
            KubeError: it was not performed, or only in part.
        """
        owner = job_owner(job)
        match action:
            case CreateCluster(attempt):
                self._create_cluster(job, owner, attempt)
            case RestoreOwnedObjects(manifest):
                self._restore(
                    [*self._owned_objects(job, owner, manifest), *self._budgets(job, owner)]
                )
            case DeleteCluster(name, uid):
                # By uid: another object of this name stays.
                self.kube.delete(Kind.CLUSTER, job.namespace, name, uid)
            case ReleaseWorkers(name, uid):
                self._release_workers(job.namespace, name, uid)
            case DeletePod(name, uid):
                self.kube.delete(Kind.POD, job.namespace, name, uid)
            case _:
                assert_never(action)

    def record_event(self, job: ObservedJob, event: JobEvent) -> None:
        """Create a Kubernetes Event about the job.

        Raises:
            KubeError: it could not be created.
        """
        self.kube.create(event_manifest(job, event, datetime.now(UTC)))

    def _create_cluster(self, job: ObservedJob, owner: Owner, attempt: int) -> None:
        run = job.cluster_job
        assert run is not None
        if self.has_json_logs:
            run = with_log_fields(run, owner, attempt)
        objects = self._owned_objects(job, owner)
        for manifest in objects:
            # An object of this name that exists has the desired content: the name is its digest.
            self.kube.create(manifest)
        config_map_name, secret_name = (manifest["metadata"]["name"] for manifest in objects[:2])
        cluster = ray_cluster(
            owner, run, attempt, config_map_name, secret_name, self._annotations()
        )
        try:
            # A cluster of this name that exists is checked in the next reconcile.
            self.kube.create(cluster)
        except Invalid as error:
            if "unknown field" not in str(error):
                raise
            raise KubeRayTooOld(
                f"this cluster's KubeRay is too old: got {error}; allowed {KUBERAY} or newer; "
                "upgrade it, and apply its definitions, which Helm leaves as they are"
            ) from error
        for budget in self._budgets(job, owner):
            self.kube.create(budget)

    def _budgets(self, job: ObservedJob, owner: Owner) -> Sequence[Manifest]:
        """Return the PodDisruptionBudget of a job's cluster, if the job asks for one."""
        run, status = job.cluster_job, job.status.cluster
        if run is None or status is None or run.spec.resources.evictable:
            return ()
        cluster = self.kube.get(Kind.CLUSTER, job.namespace, status.name)
        # Whoever else has the name of its cluster is found in the next reconcile.
        metadata = {} if cluster is None else cluster["metadata"]
        if all(reference["uid"] != owner.uid for reference in metadata.get("ownerReferences", ())):
            return ()
        return (disruption_budget(owner, run, status.name, metadata["uid"]),)

    def _release_workers(self, namespace: str, name: str, uid: str) -> None:
        cluster = self.kube.get(Kind.CLUSTER, namespace, name)
        if cluster is None or cluster["metadata"]["uid"] != uid:
            return
        # A list is applied as a whole.
        groups = [
            {**group, "replicas": 0, "minReplicas": 0}
            for group in cluster["spec"]["workerGroupSpecs"]
        ]
        place = {"name": name, "namespace": namespace, "uid": uid}
        header = {"apiVersion": cluster["apiVersion"], "kind": cluster["kind"], "metadata": place}
        self.kube.apply({**header, "spec": {"workerGroupSpecs": groups}}, force=True)

    def _annotations(self) -> Mapping[str, str]:
        return {KEY_ANNOTATION: self.identity.key_id, RELEASE_ANNOTATION: self.identity.release}

    def _restore(self, objects: Iterable[Manifest]) -> None:
        """Create missing objects. Raises the first error after it has tried all of them."""
        errors: list[KubeError] = []
        for manifest in objects:
            try:
                was_missing = self.kube.create(manifest)
            except KubeError as error:
                errors.append(error)
                continue
            if was_missing:
                metadata = manifest["metadata"]
                log.warning(
                    "%s %s was deleted, and is created again",
                    manifest["kind"],
                    metadata["name"],
                    extra={"job": f"{metadata['namespace']}/{metadata['labels'][JOB_LABEL]}"},
                )
        if errors:
            raise errors[0]

    def _owned_objects(
        self, job: ObservedJob, owner: Owner, manifest: str | None = None
    ) -> tuple[Manifest, Manifest, Manifest]:
        """Return the ConfigMap, Secret and NetworkPolicy of a job's cluster."""
        run = job.cluster_job
        assert run is not None
        return (
            config_map(owner, run, manifest),
            secret(owner, token(self.identity.key, owner)),
            network_policy(owner, self.operator_namespace, self.from_anywhere),
        )


def job_owner(job: ObservedJob) -> Owner:
    """Return the job as the owner of its objects."""
    return Owner(job.namespace, job.name, job.uid)


def event_manifest(job: ObservedJob, event: JobEvent, now: datetime) -> Mapping[str, Any]:
    """Return an Event about a job, as `kubectl describe` shows it."""
    # Of the older API: only there an event has the time by which `kubectl describe` sorts.
    second = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    component = f"{API_VERSION.partition('/')[0]}/operator"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{job.name}-", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "firstTimestamp": second,
        "lastTimestamp": second,
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "count": 1,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": REPORTER,
        "action": "Reconcile",  # required with eventTime, though kubectl does not show it
        "reason": event.reason,
        "type": "Warning" if event.is_warning else "Normal",
        "message": _truncate(event.message, MAX_EVENT_BYTES),
    }


def _truncate(text: str, size: int) -> str:
    """Return the longest prefix of complete characters within this many UTF-8 bytes."""
    return text.encode()[:size].decode(errors="ignore")
