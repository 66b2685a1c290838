"""Looks at a job and everything that was made for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_api.status import Phase
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
from rlhf_operator.key import Identity
from rlhf_operator.kube.protocol import Kind, Kube
from rlhf_operator.parse import (
    is_ours,
    parse_claim,
    parse_cluster,
    parse_job,
    parse_pod,
    pods_refused,
)
from rlhf_operator.planning import Planner
from rlhf_operator.releases import Releases

Key = tuple[str, str]
"""Namespace and name of a job."""
CLUSTER_LABEL = "ray.io/cluster"
"""On KubeRay's pods. Others may carry the job's label, too: its NetworkPolicy lets them in."""


@dataclass
class View:
    """What Kubernetes said of a job, and when."""

    raw: Mapping[str, Any]
    clusters: tuple[Mapping[str, Any], ...]
    pods: tuple[PodSeen, ...]
    claim: ClaimSeen | None
    lacks_code: bool
    companions_due: bool
    time: float


@dataclass
class Observer:
    """Reads jobs from Kubernetes and from their heads.

    Events only say that something changed. What is there is read then; between events the last view
    serves for a while, so that a running job costs the API server next to nothing.
    """

    kube: Kube
    identity: Identity
    planner: Planner
    defaults: JobDefaults
    view_seconds: float = 60.0
    """How old a view may be without an event: should one have been lost."""
    companions_seconds: float = 900.0
    """How often what stands beside a cluster that is well is made, should it be gone."""
    clock: Callable[[], float] = time.monotonic
    _views: dict[Key, View] = field(default_factory=dict)
    _problems: dict[Key, tuple[float, PodProblem]] = field(default_factory=dict)
    _companions: dict[Key, float] = field(default_factory=dict)
    """When they were looked for last."""

    def __post_init__(self) -> None:
        self.releases = Releases(self.kube, self.identity, self.clock)

    def observe(self, key: Key, changed: bool, planned: Callable[[], None]) -> Observed | None:
        """Everything about a job but what its head says.

        Args:
            changed: whether an event said that something is not as it was.
            planned: called when a plan that is not there yet has been made.

        Returns:
            None: there is no such job, or another controller looks after it.
        """
        view = None if changed else self._views.get(key)
        if view is None or not self._serves(view):
            view = self._read(key)
        if view is None:
            self.forget(key)
            return None
        job = parse_job(view.raw, self.defaults)
        key_id = self.identity.key_id
        clusters = tuple(parse_cluster(raw, job.uid, key_id) for raw in view.clusters)
        other_release = self.releases.other(clusters)
        recent = _refused(view, job) or self._recent(key)
        seen = Observed(
            job,
            clusters,
            view.pods,
            view.claim,
            lacks_code=view.lacks_code,
            companions_due=view.companions_due,
            recent=recent,
            other_release=other_release,
        )
        if other_release is not None:
            return seen
        if job.job is not None and _is_to_be_planned(job):
            return seen.with_plan(self.planner.plan(job.job, planned))
        return seen

    def _serves(self, view: View) -> bool:
        """Only a running job is looked at often; everything else is read anew at every look."""
        phase = view.raw.get("status", {}).get("phase")
        return phase == Phase.RUNNING and self.clock() - view.time <= self.view_seconds

    def forget(self, key: Key) -> None:
        """Read everything anew at the next look."""
        self._views.pop(key, None)

    def forget_for_good(self, key: Key) -> None:
        """The job is gone."""
        self.forget(key)
        self._problems.pop(key, None)
        self._companions.pop(key, None)

    def wrote(self, key: Key, raw: Mapping[str, Any]) -> None:
        """The job as it is after the operator's own write."""
        if key in self._views:
            self._views[key].raw = raw

    def remember(self, key: Key, problem: PodProblem) -> None:
        """A pod told of a problem and may be gone before anybody looks."""
        self._problems[key] = (self.clock(), problem)

    def _recent(self, key: Key) -> PodProblem | None:
        when, problem = self._problems.get(key, (float("-inf"), None))
        return problem if self.clock() - when < 5 * self.view_seconds else None

    def _read(self, key: Key) -> View | None:
        namespace, name = key
        begin = self.clock()
        raw = self.kube.get(Kind.JOB, namespace, name)
        if raw is None or not is_ours(raw):
            return None
        label = f"{JOB_LABEL}={name}"
        found = self.kube.list(Kind.POD, namespace, f"{label},{CLUSTER_LABEL}")
        pods = tuple(parse_pod(pod) for pod in found)
        clusters = self.kube.list(Kind.CLUSTER, namespace, label)
        job = parse_job(raw, self.defaults)
        view = View(
            raw=raw,
            clusters=(*clusters, *self._stranger(job, clusters)),
            pods=pods,
            claim=self._claim(job),
            lacks_code=self._lacks_code(job),
            companions_due=self._companions_due(job, pods),
            time=begin,
        )
        self._views[key] = view
        return view

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
        name = claim_of(job.job) if job.status.cluster is None else None
        return None if name is None else parse_claim(self.kube.get(Kind.CLAIM, job.namespace, name))

    def _lacks_code(self, job: JobSeen) -> bool:
        """Of a job that is about to get a cluster, whose pods would wait for it without a word."""
        name = code_of(job.job) if job.status.cluster is None else None
        return name is not None and self.kube.get(Kind.CONFIG_MAP, job.namespace, name) is None

    def _companions_due(self, job: JobSeen, pods: tuple[PodSeen, ...]) -> bool:
        """Now and then; more often while pods are not ready, as they may lack one."""
        key, now = (job.namespace, job.name), self.clock()
        if job.status.cluster is None or job.status.phase in ENDS:
            self._companions.pop(key, None)
            return False
        is_well = all(pod.is_ready for pod in pods)
        pause = self.companions_seconds if is_well else self.view_seconds
        if now - self._companions.setdefault(key, now) < pause:
            return False
        self._companions[key] = now
        return True


def _refused(view: View, job: JobSeen) -> PodProblem | None:
    """What keeps the job's cluster from having pods."""
    name = job.status.cluster.name if job.status.cluster else None
    found = [pods_refused(raw) for raw in view.clusters if raw["metadata"]["name"] == name]
    return next(filter(None, found), None)


def _is_to_be_planned(job: JobSeen) -> bool:
    """Whether a cluster may be made for it now."""
    waits = job.job is not None and job.job.spec.suspend
    ended = job.status.phase in ENDS
    return job.status.cluster is None and not (job.is_deleting or ended or waits)
