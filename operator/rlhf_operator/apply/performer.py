"""Takes those actions of a decision that are Kubernetes' affair. Each may be taken twice without
harm."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from rlhf_api.on_cluster import (
    FINALIZER,
    JOB_LABEL,
    KEY_ANNOTATION,
    KUBERAY,
    RELEASE_ANNOTATION,
)
from rlhf_api.spec.job import API_VERSION, KIND
from rlhf_kube.kinds import Kind
from rlhf_operator.apply.build.owned_objects import config_map, network_policy, secret, token
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.ray_cluster import ray_cluster
from rlhf_operator.clients.kube.protocol import Invalid, Kube, KubeError, Manifest
from rlhf_operator.decide.actions import (
    DeleteCluster,
    DeletePod,
    HoldJob,
    KubeAction,
    MakeCluster,
    Note,
    ReleaseJob,
    RestoreCompanions,
)
from rlhf_operator.decide.observed import JobSeen
from rlhf_operator.identity import Identity

log = logging.getLogger(__name__)
REPORTER = "rlhf-operator"
NOTE_BYTES = 1024
"""Of an event's text: API servers take no more."""


class KubeRayTooOld(Invalid):
    """The kind RayCluster lacks what the operator relies on."""

    reason = "KubeRayTooOld"


@dataclass
class Performer:
    """Does what was decided, and tells people of it."""

    kube: Kube
    identity: Identity
    operator_namespace: str | None
    """Whose pods the jobs' NetworkPolicies let in. None: the operator is not in the cluster."""
    from_anywhere: bool = False
    """Whether they let everybody reach a head's ports: those who come through the API server."""

    def perform(self, job: JobSeen, action: KubeAction) -> None:
        """One action.

        Raises:
            KubeError: it could not be taken, or not wholly.
        """
        owner = owner_of(job)
        match action:
            case HoldJob():
                self.kube.apply(_with_finalizers(job, [FINALIZER]))
            case ReleaseJob():
                self.kube.apply(_with_finalizers(job, []))
            case MakeCluster(attempt):
                self._make_cluster(job, owner, attempt)
            case RestoreCompanions(manifest):
                self._restore(self._companions(job, owner, manifest))
            case DeleteCluster(name, uid):
                self.kube.delete(Kind.CLUSTER, job.namespace, name, uid)
            case DeletePod(name, uid):
                self.kube.delete(Kind.POD, job.namespace, name, uid)
            case _:
                assert_never(action)

    def tell(self, job: JobSeen, note: Note) -> None:
        """An event about the job.

        Raises:
            KubeError: it could not be written.
        """
        self.kube.create(event(job, note, datetime.now(UTC)))

    def _make_cluster(self, job: JobSeen, owner: Owner, attempt: int) -> None:
        """Names of companions tell their content, so what is there already is what is wanted."""
        run = job.cluster_job
        assert run is not None
        companions = self._companions(job, owner)
        for each in companions:
            self.kube.create(each)
        manifest, secret = (each["metadata"]["name"] for each in companions[:2])
        cluster = ray_cluster(owner, run, attempt, manifest, secret, self._stamps())
        try:
            self.kube.create(cluster)  # another's is seen at the next look
        except Invalid as error:
            if "unknown field" not in str(error):
                raise
            raise KubeRayTooOld(
                f"this cluster's KubeRay is too old: got {error}; allowed {KUBERAY} or newer; "
                "upgrade it, and apply its definitions, which Helm leaves as they are"
            ) from error

    def _stamps(self) -> Mapping[str, str]:
        return {KEY_ANNOTATION: self.identity.key_id, RELEASE_ANNOTATION: self.identity.release}

    def _restore(self, companions: Iterable[Manifest]) -> None:
        """Make what is gone; one that is refused holds up no other."""
        errors: list[KubeError] = []
        for each in companions:
            try:
                was_gone = self.kube.create(each)
            except KubeError as error:
                errors.append(error)
                continue
            if was_gone:
                metadata = each["metadata"]
                log.warning(
                    "%s %s was deleted, and is made again",
                    each["kind"],
                    metadata["name"],
                    extra={"job": f"{metadata['namespace']}/{metadata['labels'][JOB_LABEL]}"},
                )
        if errors:
            raise errors[0]

    def _companions(
        self, job: JobSeen, owner: Owner, manifest: str | None = None
    ) -> tuple[Manifest, Manifest, Manifest]:
        """The manifest in force, the token, and who may talk to the pods."""
        run = job.cluster_job
        assert run is not None
        return (
            config_map(owner, run, manifest),
            secret(owner, token(self.identity.key, owner)),
            network_policy(owner, self.operator_namespace, self.from_anywhere),
        )


def owner_of(job: JobSeen) -> Owner:
    """The job as the owner of what is made for it."""
    return Owner(job.namespace, job.name, job.uid)


def _with_finalizers(job: JobSeen, finalizers: list[str]) -> Mapping[str, Any]:
    """What the operator says of an RLHFJob itself: nothing but its finalizer."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,  # one that was made anew meanwhile is another job
            "finalizers": finalizers,
        },
    }


def event(job: JobSeen, note: Note, now: datetime) -> Mapping[str, Any]:
    """An event about a job, as `kubectl describe` shows it."""
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{job.name}-", "namespace": job.namespace},
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "eventTime": time,
        "reportingController": f"{API_VERSION.partition('/')[0]}/operator",
        "reportingInstance": REPORTER,
        "action": "Reconcile",
        "reason": note.reason,
        "type": "Warning" if note.is_warning else "Normal",
        "note": _cut(note.message, NOTE_BYTES),
    }


def _cut(text: str, size: int) -> str:
    """As much of a text as fits into so many bytes, in whole characters."""
    return text.encode()[:size].decode(errors="ignore")
