"""The observed state of a job and its objects: the only input of a decision besides the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from functools import cached_property

from rlhf_api.changes import manifest_digest
from rlhf_api.on_cluster import cluster_name, is_cluster_name
from rlhf_api.report import StatusReport
from rlhf_api.spec.job import RLHFJob
from rlhf_api.status import DefaultsStatus, PlanStatus, RLHFJobStatus
from rlhf_operator.clients.head.protocol import Submission
from rlhf_operator.decide.node_pools import cluster_job


@dataclass(frozen=True)
class ObservedJob:
    """An RLHFJob."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    """Writes based on another version are refused as conflicts."""
    generation: int
    created: datetime
    is_deleting: bool
    job: RLHFJob | None
    """With the chart's defaults. None: its manifest cannot be read."""
    defaults: DefaultsStatus | None
    """Chart defaults in force, pinned at acceptance."""
    problem: Refusal | None
    """Error that makes it unreadable, or unable to run on any cluster."""
    status: RLHFJobStatus

    @cached_property
    def digest(self) -> str | None:
        """Digest of the fields that the cluster and the driver depend on. None: unreadable."""
        return None if self.job is None else manifest_digest(self.job.spec)

    def matches(self, digest: str) -> bool:
        """True if a cluster with this digest runs the job's manifest.

        Also true if the manifest cannot be read: then nothing is replaced.
        """
        if self.job is None or digest == self.digest:
            return True
        # Earlier releases included the models' shapes in the digest.
        return digest == manifest_digest(self.job.spec, with_shapes=True)

    @property
    def cluster_job(self) -> RLHFJob | None:
        """The manifest as its cluster runs it, by the plan in the status. None: unreadable."""
        return None if self.job is None else cluster_job(self.job, self.status.plan)

    @property
    def run_folder(self) -> str:
        """Address of the job's output: pvc://CLAIM/FOLDER, or the storage's own."""
        storage = self.job.spec.checkpoint.storage if self.job else None
        if storage is None:
            return ""
        if storage.persistent_volume_claim is None:
            return str(storage.uri).rstrip("/")
        claim = storage.persistent_volume_claim
        return f"pvc://{claim.claim_name}/{claim.sub_path or self.name}".rstrip("/")

    def cluster_name(self, attempt: int) -> str:
        """Return the name of the RayCluster of this attempt."""
        return cluster_name(self.name, attempt)


@dataclass(frozen=True)
class Refusal:
    """Reason and message of a manifest that cannot run."""

    reason: str
    message: str


@dataclass(frozen=True)
class ObservedCluster:
    """A RayCluster with the job's label."""

    name: str
    uid: str
    is_owned: bool
    """True if the job's uid owns it; anybody may write the label."""
    is_of_earlier_job: bool
    """True if a deleted job of the same name owns it: Kubernetes deletes it soon."""
    has_other_key: bool
    """True if an operator with another key created it, whose token its head accepts."""
    release: str | None
    """Release of the operator that created it. None: not recorded."""
    is_deleting: bool
    is_suspended: bool
    """True if Kueue or a person has suspended its pods."""
    is_queued: bool
    """True if a queue has admitted it with its number of workers, or is to."""
    manifest: str | None
    """ConfigMap with the manifest that its pods mount. None: it has no such volume."""
    desired_workers: Mapping[str, int]
    """Workers by node pool."""

    @property
    def num_desired_workers(self) -> int:
        """Workers of all pools."""
        return sum(self.desired_workers.values())


@dataclass(frozen=True)
class PodProblem:
    """Cause that keeps a pod from running."""

    reason: str
    """ImagePull, Unschedulable, OutOfMemory, Evicted, Disrupted, CrashLoop, Configuration,
    ContainerFailed, NotStarting, PodsRefused."""
    message: str
    needs_change: bool = False
    """True if nothing but a change by somebody lets the pod start."""

    @property
    def outlives_pod(self) -> bool:
        """True if it explains a deleted pod."""
        return self.is_disruption or self.reason in ("OutOfMemory", "ContainerFailed")

    @property
    def is_disruption(self) -> bool:
        """True if Kubernetes ends the pod for its own reasons: a drain, a preemption, a taint."""
        return self.reason in ("Disrupted", "Evicted")


@dataclass(frozen=True)
class ObservedPod:
    """A pod of one of the job's clusters."""

    name: str
    uid: str
    is_head: bool
    is_ready: bool
    created: datetime
    owner: str | None
    """Uid of the RayCluster that controls it."""
    owner_name: str | None
    """Name of the RayCluster that controls it. None: no RayCluster does."""
    is_bound: bool = False
    """True if it occupies devices of a node: it is scheduled, and has not ended."""
    pool: str | None = None
    """Node pool of a worker. None: it is the head, or unlabelled."""
    deletion_time: datetime | None = None
    """End of its grace period. None: it is not being deleted."""
    address: str | None = None
    """IP address. None: not assigned yet."""
    problem: PodProblem | None = None
    is_starting: bool = False
    """True while the kubelet creates its containers. Only events explain what blocks that."""

    @property
    def is_deleting(self) -> bool:
        return self.deletion_time is not None


class HeadState(Enum):
    """Outcome of the request to the head."""

    NOT_ASKED = auto()
    """No head could be asked, or there was nothing to ask."""
    UNREACHABLE = auto()
    REFUSED = auto()
    ANSWERED = auto()


@dataclass(frozen=True)
class ObservedHead:
    """The head's answer, and for how long the head has been in this state.

    This process measures the durations: a new one starts at zero.
    """

    state: HeadState = HeadState.NOT_ASKED
    message: str = ""
    submissions: tuple[Submission, ...] = ()
    report: StatusReport | None = None
    """Newest report of the last driver; after its end the final one, if it left one."""
    refused_seconds: float = 0.0
    """Since it first refused the token."""
    unanswered_seconds: float = 0.0
    """Since its last answer."""
    unchanged_seconds: float = 0.0
    """Since the driver's last new report."""
    heartbeat_seconds: int | None = None
    """Interval promised in the driver's last report. None: no promise, or the driver has ended."""
    others_answer: bool = False
    """True if another head has answered recently: the operator itself is not cut off."""

    def submission(self, id: str) -> Submission | None:
        """Return the submission with this id."""
        return next((entry for entry in self.submissions if entry.id == id), None)


@dataclass(frozen=True)
class PlanResult:
    """Outcome of planning: a plan, a refusal, or neither because something is unknown."""

    plan: PlanStatus | None = None
    refusal: Refusal | None = None
    unknown: str = ""
    """Obstacle to planning it here, and what to do."""


@dataclass(frozen=True)
class ObservedClaim:
    """The PersistentVolumeClaim for checkpoints."""

    exists: bool
    is_shared: bool
    """True if several nodes may write to it: ReadWriteMany."""


@dataclass(frozen=True)
class OtherRelease:
    """A release of the operator that created the job's cluster, and is still installed."""

    name: str
    """Namespace and name of its Lease."""
    acts: bool
    """True if one of its replicas renews the Lease."""


@dataclass(frozen=True)
class Observed:
    """Everything that a decision depends on, except the time."""

    job: ObservedJob
    clusters: tuple[ObservedCluster, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    claim: ObservedClaim | None = None
    """None: the job needs none."""
    folder_owner: str | None = None
    """Another job that owns the run's folder. None: no other job names it."""
    lacks_code: bool = False
    """True if the ConfigMap of spec.code does not exist."""
    owned_objects_due: bool = False
    """True if it is time to restore the cluster's ConfigMap, Secret and NetworkPolicy."""
    plan: PlanResult | None = None
    """None: it is being made."""
    has_kuberay: bool = True
    """True if the API server serves RayClusters."""
    other_release: OtherRelease | None = None
    """Another release of the operator that manages the job. None: this one does."""
    head: ObservedHead = field(default_factory=ObservedHead)
    pods_refusal: PodProblem | None = None
    """Reason why KubeRay cannot create pods now."""
    recent_problem: PodProblem | None = None
    """Problem of a pod that may be deleted by now."""

    def with_plan(self, plan: PlanResult | None) -> Observed:
        """Return a copy with the outcome of planning."""
        return replace(self, plan=plan)

    def with_head(self, head: ObservedHead) -> Observed:
        """Return a copy with the head's answer."""
        return replace(self, head=head)

    def with_status(self, status: RLHFJobStatus) -> Observed:
        """Return a copy with the status that was written."""
        return replace(self, job=replace(self.job, status=status))

    def cluster(self, name: str) -> ObservedCluster | None:
        """Return the cluster of this name, owned or not."""
        return next((cluster for cluster in self.clusters if cluster.name == name), None)

    @property
    def owned_clusters(self) -> tuple[ObservedCluster, ...]:
        """Clusters that the job owns."""
        return tuple(cluster for cluster in self.clusters if cluster.is_owned)

    @property
    def own_pods(self) -> tuple[ObservedPod, ...]:
        """Pods of the job's clusters, by owner: anybody may write a label."""
        # Owned by name: a pod of a RayCluster that does not exist any more still counts.
        attempts = range(1, self.job.status.attempts + 1)
        names = {self.job.cluster_name(attempt) for attempt in attempts}
        return tuple(pod for pod in self.pods if pod.owner_name in names)

    @property
    def leftover_pods(self) -> tuple[ObservedPod, ...]:
        """Pods whose RayCluster is gone, or belongs to a deleted job of the same name."""
        current = {cluster.uid for cluster in self.clusters if not cluster.is_of_earlier_job}
        return tuple(
            pod
            for pod in self.pods
            if pod.owner not in current and is_cluster_name(pod.owner_name, self.job.name)
        )

    def cluster_pods(self, name: str) -> tuple[ObservedPod, ...]:
        """Return the pods of a cluster; if it exists, only those with its uid as owner."""
        cluster = self.cluster(name)
        return tuple(
            pod
            for pod in self.own_pods
            if pod.owner_name == name and (cluster is None or pod.owner == cluster.uid)
        )

    def head_pod(self, cluster: str) -> ObservedPod | None:
        """Return the head's pod unless it is being deleted."""
        pods = self.cluster_pods(cluster)
        return next((pod for pod in pods if pod.is_head and not pod.is_deleting), None)

    def is_ready(self, cluster: ObservedCluster) -> bool:
        """True if its head and all its workers are ready."""
        pods = [
            pod for pod in self.cluster_pods(cluster.name) if not pod.is_deleting and pod.is_ready
        ]
        workers = sum(not pod.is_head for pod in pods)
        return any(pod.is_head for pod in pods) and workers >= cluster.num_desired_workers
