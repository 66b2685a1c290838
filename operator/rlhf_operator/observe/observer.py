"""Looks at a job and everything that was made for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.cached import Key
from rlhf_operator.clients.kube.protocol import Kube
from rlhf_operator.config import JobDefaults
from rlhf_operator.decide.acceptance import claim_of, code_of
from rlhf_operator.decide.endings import ENDS
from rlhf_operator.decide.observed import (
    ClaimSeen,
    JobSeen,
    Observed,
    PodProblem,
    PodSeen,
)
from rlhf_operator.decide.pod_messages import SHOWN
from rlhf_operator.identity import Identity
from rlhf_operator.observe.parse import (
    is_ours,
    parse_claim,
    parse_cluster,
    parse_job,
    parse_pod,
    pods_refused,
)
from rlhf_operator.observe.planner import Planner
from rlhf_operator.observe.releases import Releases


@dataclass
class Observer:
    """Reads jobs, what was made for them and what they need from Kubernetes.

    Jobs, clusters and pods are in memory; what is asked for is only what a job needs that is about
    to get a cluster.
    """

    kube: Kube
    identity: Identity
    planner: Planner
    defaults: JobDefaults
    has_kuberay: bool = True
    """Whether Kubernetes knows RayClusters."""
    restore_seconds: float = 60.0
    """How often what stands beside a cluster is made, should it be gone, while pods are not ready,
    as they may lack it, or while it is refused."""
    companions_seconds: float = 900.0
    """The same of a cluster that is well, and lacks nothing."""
    remembered_seconds: float = 300.0
    """How long it is told why a pod has gone."""
    starting_seconds: float = 20.0
    """A pod whose containers are not made after so long is asked about."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _explained: dict[Key, tuple[float, dict[str, PodProblem]]] = field(default_factory=dict)
    """Of each job when events were asked for, and what they say of which pod."""
    _problems: dict[Key, tuple[float, PodProblem]] = field(default_factory=dict)
    _companions: dict[Key, float] = field(default_factory=dict)
    """When they were to be made last."""
    _lacking: set[Key] = field(default_factory=set)
    """Jobs for which they could not be made then."""

    def __post_init__(self) -> None:
        self.releases = Releases(self.kube, self.identity, self.clock)

    def observe(self, key: Key, planned: Callable[[], None]) -> Observed | None:
        """Everything about a job but what its head says.

        Args:
            planned: called when a plan that is not there yet has been made.

        Returns:
            None: there is no such job, or another controller looks after it.
        """
        namespace, name = key
        raw = self.kube.get(Kind.JOB, namespace, name)
        if raw is None or not is_ours(raw):
            return None
        job = parse_job(raw, self.defaults)
        label = f"{JOB_LABEL}={name}"
        found = self.kube.list(Kind.CLUSTER, namespace, label)
        found = (*found, *self._stranger(job, found))
        clusters = tuple(parse_cluster(each, job.uid, self.identity.key_id) for each in found)
        pods = self._explain(key, tuple(map(parse_pod, self.kube.list(Kind.POD, namespace, label))))
        seen = Observed(
            job,
            clusters,
            pods,
            claim=self._claim(job),
            lacks_code=self._lacks_code(job),
            companions_due=self._companions_due(job, pods),
            recent=_refused(found, job) or self._recent(key),
            other_release=self.releases.other(clusters),
            has_kuberay=self.has_kuberay,
        )
        if job.job is not None and seen.other_release is None and _is_to_be_planned(job):
            return seen.with_plan(self.planner.plan(job.job, planned))
        return seen

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._explained.pop(key, None)
        self._problems.pop(key, None)
        self._companions.pop(key, None)
        self._lacking.discard(key)

    def note_refused(self, key: Key) -> None:
        """What stands beside the job's cluster could not be made."""
        self._lacking.add(key)

    def remember(self, key: Key, problem: PodProblem) -> None:
        """A pod told of a problem and may be gone before anybody looks."""
        self._problems[key] = (self.clock(), problem)

    def _explain(self, key: Key, pods: tuple[PodSeen, ...]) -> tuple[PodSeen, ...]:
        """Pods that do not start, with what their kubelets say of it, which only events tell."""
        slow = [pod for pod in pods if self._starts_slowly(pod)]
        if not slow:
            self._explained.pop(key, None)
            return pods
        asked, told = self._explained.get(key, (float("-inf"), {}))
        if self.clock() - asked >= self.restore_seconds / 2:
            told = {}
            for pod in slow[:SHOWN]:
                warnings = self.kube.warnings(key[0], pod.uid)
                if warnings:
                    told[pod.uid] = PodProblem("NotStarting", f"its node says: {warnings[-1]}")
            self._explained[key] = self.clock(), told
        return tuple(replace(pod, problem=pod.problem or told.get(pod.uid)) for pod in pods)

    def _starts_slowly(self, pod: PodSeen) -> bool:
        age = (self.now() - pod.created).total_seconds()
        return pod.is_starting and pod.problem is None and age >= self.starting_seconds

    def _recent(self, key: Key) -> PodProblem | None:
        when, problem = self._problems.get(key, (float("-inf"), None))
        return problem if self.clock() - when < self.remembered_seconds else None

    def _stranger(
        self, job: JobSeen, clusters: tuple[Mapping[str, Any], ...]
    ) -> tuple[Mapping[str, Any], ...]:
        """The cluster that has the name which the job needs, though not its label."""
        current = job.status.cluster
        if current is None and not _is_to_be_planned(job):
            return ()
        name = current.name if current else job.cluster_name(job.status.attempts + 1)
        if any(each["metadata"]["name"] == name for each in clusters):
            return ()
        found = self.kube.get(Kind.CLUSTER, job.namespace, name)
        return () if found is None else (found,)

    def _claim(self, job: JobSeen) -> ClaimSeen | None:
        """Of a job that is about to get a cluster; later it is mounted, and that is that."""
        name = claim_of(job.job) if _is_to_be_planned(job) else None
        return None if name is None else parse_claim(self.kube.get(Kind.CLAIM, job.namespace, name))

    def _lacks_code(self, job: JobSeen) -> bool:
        """Of a job that is about to get a cluster, whose pods would wait for it without a word."""
        name = code_of(job.job) if _is_to_be_planned(job) else None
        return name is not None and self.kube.get(Kind.CONFIG_MAP, job.namespace, name) is None

    def _companions_due(self, job: JobSeen, pods: tuple[PodSeen, ...]) -> bool:
        """Now and then; more often while pods are not ready, as they may lack one, or one is
        refused."""
        key, now = (job.namespace, job.name), self.clock()
        if job.status.cluster is None or job.status.phase in ENDS:
            self._companions.pop(key, None)
            return False
        is_well = key not in self._lacking and all(pod.is_ready for pod in pods)
        pause = self.companions_seconds if is_well else self.restore_seconds
        if now - self._companions.setdefault(key, now) < pause:
            return False
        self._companions[key] = now
        self._lacking.discard(key)
        return True


def _refused(clusters: Iterable[Mapping[str, Any]], job: JobSeen) -> PodProblem | None:
    """What keeps the job's cluster from having pods."""
    name = job.status.cluster.name if job.status.cluster else None
    found = [pods_refused(raw) for raw in clusters if raw["metadata"]["name"] == name]
    return next(filter(None, found), None)


def _is_to_be_planned(job: JobSeen) -> bool:
    """Whether a cluster may be made for it now."""
    waits = job.job is not None and job.job.spec.suspend
    ended = job.status.phase in ENDS
    return job.status.cluster is None and not (job.is_deleting or ended or waits)
