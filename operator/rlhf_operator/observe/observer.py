"""Observe a job and everything that was created for it, except its head."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube
from rlhf_operator.clients.cached_kube import CachedKube, Key
from rlhf_operator.config import JobDefaults, PodPolicy
from rlhf_operator.decide.acceptance import claim_name, code_config_map
from rlhf_operator.decide.observed import (
    Observed,
    ObservedClaim,
    ObservedCluster,
    ObservedJob,
    ObservedPod,
    PodProblem,
)
from rlhf_operator.decide.pod_messages import SHOWN_PROBLEMS
from rlhf_operator.decide.predicates import FINAL_PHASES
from rlhf_operator.identity import Identity
from rlhf_operator.observe.parse import (
    find_pods_refusal,
    is_managed_here,
    parse_claim,
    parse_cluster,
    parse_job,
    parse_pod,
)
from rlhf_operator.observe.planner import Planner
from rlhf_operator.observe.releases import Releases

MAX_WARNINGS = 50
"""Events of one object that are read."""


@dataclass
class Observer:
    """Reads jobs and their objects.

    Jobs, clusters and pods are in memory. Requests are rare: mostly before a job has a cluster, and
    for pods that start slowly.
    """

    kube: CachedKube
    identity: Identity
    planner: Planner
    defaults: JobDefaults
    policy: PodPolicy = PodPolicy()
    """Fields of pods that jobs may set only where this says so."""
    has_kuberay: bool = True
    """True if the API server serves RayClusters."""
    restore_seconds: float = 60.0
    """Interval at which owned objects are restored while pods are not ready, as they may lack one,
    or while an object is refused."""
    owned_objects_seconds: float = 900.0
    """The same interval for a healthy cluster."""
    recent_seconds: float = 300.0
    """Time for which a deleted pod's problem is reported."""
    slow_start_seconds: float = 20.0
    """Age of a pod without containers at which its events are read."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _explained: dict[Key, tuple[float, dict[str, PodProblem]]] = field(default_factory=dict)
    """By job: when events were read, and their explanation by the pod's uid."""
    _problems: dict[Key, tuple[float, str | None, PodProblem]] = field(default_factory=dict)
    """By job: the last problem of a pod that may be deleted, its time, and its cluster's uid."""
    _restored: dict[Key, float] = field(default_factory=dict)
    """By job: when its owned objects were last due."""
    _refused: set[Key] = field(default_factory=set)
    """Jobs whose owned objects could not be restored."""

    def __post_init__(self) -> None:
        self.releases = Releases(self.kube, self.identity, self.clock, self.now)

    def observe(self, key: Key, on_planned: Callable[[], None]) -> Observed | None:
        """Return the state of a job, without its head.

        Args:
            on_planned: called when a plan that is not ready yet has been made.

        Returns:
            None: there is no such job, or another controller manages it.
        """
        namespace, name = key
        raw = self.kube.get(Kind.JOB, namespace, name)
        if raw is None or not is_managed_here(raw):
            return None
        job = parse_job(raw, self.defaults.for_namespace(namespace), self.policy)
        label = f"{JOB_LABEL}={name}"
        raw_clusters = self.kube.list(Kind.CLUSTER, namespace, label)
        raw_clusters = (*raw_clusters, *self._unlabelled_cluster(job, raw_clusters))
        clusters = tuple(
            parse_cluster(cluster, name, job.uid, self.identity.key_id) for cluster in raw_clusters
        )
        pods = tuple(map(parse_pod, self.kube.list(Kind.POD, namespace, label)))
        pods = self._explain_slow_starts(key, pods)
        observed = Observed(
            job,
            clusters,
            pods,
            claim=self._claim(job),
            folder_owner=self.kube.folders.owner(key) if _needs_cluster(job) else None,
            lacks_code=self._lacks_code(job),
            owned_objects_due=self._check_owned_objects_due(job, pods),
            pods_refusal=_find_refusal(raw_clusters, job),
            recent_problem=self._recent_problem(key, job, clusters),
            other_release=self.releases.other(clusters),
            has_kuberay=self.has_kuberay,
        )
        # A job with a cluster keeps the plan in its status.
        if job.job is not None and observed.other_release is None and _needs_cluster(job):
            return observed.with_plan(self.planner.plan(job.job, on_planned))
        return observed

    def forget(self, key: Key) -> None:
        """Drop the state of a deleted job."""
        self._explained.pop(key, None)
        self._problems.pop(key, None)
        self._restored.pop(key, None)
        self._refused.discard(key)

    def record_refused(self, key: Key) -> None:
        """Retry soon to restore the job's owned objects: the last try was refused."""
        self._refused.add(key)

    def remember(self, key: Key, cluster: str | None, problem: PodProblem) -> None:
        """Keep a pod's problem: the pod may be deleted before the next reconcile.

        Args:
            key: of the job.
            cluster: uid of the pod's RayCluster.
            problem: of the pod.
        """
        self._problems[key] = (self.clock(), cluster, problem)

    def _explain_slow_starts(
        self, key: Key, pods: tuple[ObservedPod, ...]
    ) -> tuple[ObservedPod, ...]:
        # The cause of a slow start, e.g. a missing Secret, is only in the kubelet's events.
        slow = [pod for pod in pods if self._is_slow_to_start(pod)]
        if not slow:
            self._explained.pop(key, None)
            return pods
        read, problems = self._explained.get(key, (float("-inf"), {}))
        if self.clock() - read >= self.restore_seconds / 2:
            problems = {}
            for pod in slow[:SHOWN_PROBLEMS]:
                warning = start_warning(self.kube, key[0], pod.uid)
                if warning is not None:
                    problems[pod.uid] = PodProblem("NotStarting", warning)
            self._explained[key] = self.clock(), problems
        return tuple(replace(pod, problem=pod.problem or problems.get(pod.uid)) for pod in pods)

    def _is_slow_to_start(self, pod: ObservedPod) -> bool:
        age = (self.now() - pod.created).total_seconds()
        return pod.is_starting and pod.problem is None and age >= self.slow_start_seconds

    def _recent_problem(
        self, key: Key, job: ObservedJob, clusters: Iterable[ObservedCluster]
    ) -> PodProblem | None:
        when, uid, problem = self._problems.get(key, (float("-inf"), None, None))
        name = job.status.cluster.name if job.status.cluster else None
        # A problem of an earlier cluster says nothing about this one. By uid: a deleted job of this
        # name may have had a cluster of the same name.
        is_current = any((cluster.name, cluster.uid) == (name, uid) for cluster in clusters)
        return problem if is_current and self.clock() - when < self.recent_seconds else None

    def _unlabelled_cluster(
        self, job: ObservedJob, clusters: tuple[Mapping[str, Any], ...]
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the cluster with the name that the job needs, if it lacks the job's label."""
        current = job.status.cluster
        if current is None and not _needs_cluster(job):
            return ()
        name = current.name if current else job.cluster_name(job.status.attempts + 1)
        if any(cluster["metadata"]["name"] == name for cluster in clusters):
            return ()
        cluster = self.kube.get(Kind.CLUSTER, job.namespace, name)
        return () if cluster is None else (cluster,)

    def _claim(self, job: ObservedJob) -> ObservedClaim | None:
        # Read only before the cluster exists: a mounted claim cannot disappear.
        name = claim_name(job.job) if _needs_cluster(job) else None
        return None if name is None else parse_claim(self.kube.get(Kind.CLAIM, job.namespace, name))

    def _lacks_code(self, job: ObservedJob) -> bool:
        # Checked before the cluster exists: its pods would wait for the ConfigMap without a word.
        name = code_config_map(job.job) if _needs_cluster(job) else None
        return name is not None and self.kube.get(Kind.CONFIG_MAP, job.namespace, name) is None

    def _check_owned_objects_due(self, job: ObservedJob, pods: tuple[ObservedPod, ...]) -> bool:
        """Return True, and start the next interval, if the owned objects are to be restored."""
        key, now = (job.namespace, job.name), self.clock()
        if job.status.cluster is None or job.status.phase in FINAL_PHASES:
            self._restored.pop(key, None)
            return False
        # Restoring makes requests for every job: rarely, unless pods may be waiting for an object.
        is_healthy = key not in self._refused and all(pod.is_ready for pod in pods)
        interval = self.owned_objects_seconds if is_healthy else self.restore_seconds
        if now - self._restored.setdefault(key, now) < interval:
            return False
        self._restored[key] = now
        self._refused.discard(key)
        return True


def start_warning(kube: Kube, namespace: str, uid: str) -> str | None:
    """Return the last warning about a pod that has a node: "kubelet reports REASON: MESSAGE"."""
    # Events of the core group: kubelets write those, and they can be selected by their object.
    fields = f"involvedObject.uid={uid},type=Warning"
    events = islice(kube.iterate(Kind.CORE_EVENT, namespace, fields=fields), MAX_WARNINGS)
    # The scheduler's words are outdated: the pod has a node.
    current = [event for event in events if event.get("reason") != "FailedScheduling"]
    if not current:
        return None
    last = max(current, key=_event_time)
    component = (last.get("source") or {}).get("component") or last.get("reportingComponent")
    return f"{component or 'its node'} reports {last.get('reason', '')}: {last.get('message', '')}"


def _event_time(event: Mapping[str, Any]) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""


def _find_refusal(clusters: Iterable[Mapping[str, Any]], job: ObservedJob) -> PodProblem | None:
    """Return why KubeRay cannot create pods for the job's cluster."""
    name = job.status.cluster.name if job.status.cluster else None
    refusals = [find_pods_refusal(raw) for raw in clusters if raw["metadata"]["name"] == name]
    return next(filter(None, refusals), None)


def _needs_cluster(job: ObservedJob) -> bool:
    """True if a cluster may be created for the job now."""
    is_suspended = job.job is not None and job.job.spec.suspend
    has_ended = job.status.phase in FINAL_PHASES
    return job.status.cluster is None and not (job.is_deleting or has_ended or is_suspended)
