"""What was observed of a job and of what was made for it: the only input of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from functools import cached_property

from rlhf_api.changes import manifest_digest
from rlhf_api.on_cluster import cluster_name
from rlhf_api.report import StatusReport
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_api.status import DefaultsStatus, PlanStatus, RLHFJobStatus
from rlhf_operator.clients.head.protocol import Submission
from rlhf_operator.decide.node_pools import cluster_job, taken_pools


@dataclass(frozen=True)
class JobSeen:
    """An RLHFJob."""

    namespace: str
    name: str
    uid: str
    version: str
    """Its resourceVersion: who writes upon another one is refused."""
    generation: int
    created: datetime
    is_deleting: bool
    has_finalizer: bool
    job: RLHFJob | None
    """With the chart's defaults. None: its manifest cannot be read."""
    defaults: DefaultsStatus | None
    """What of them it takes: those of its acceptance, where it was accepted."""
    problem: Refusal | None
    """Why it cannot be read, or cannot be run whatever the cluster."""
    status: RLHFJobStatus

    @cached_property
    def digest(self) -> str | None:
        """Of what a cluster and driver of this manifest go by. None: it cannot be read."""
        return None if self.job is None else manifest_digest(self.job.spec)

    def is_of(self, digest: str) -> bool:
        """Whether a cluster with such a digest is one of this manifest, as this release made it or
        an earlier one; also where it cannot be read."""
        if self.job is None or digest == self.digest:
            return True
        return digest == manifest_digest(self.job.spec, with_shapes=True)

    @property
    def cluster_job(self) -> RLHFJob | None:
        """The manifest as its cluster runs it, by the plan in the status. None: it cannot be
        read."""
        return None if self.job is None else cluster_job(self.job, self.status.plan)

    @property
    def num_gpus(self) -> int:
        """GPUs that its cluster asks for."""
        job = self.cluster_job
        pools = taken_pools(job) if job else ()
        return sum(pool.num_devices for pool in pools if pool.device is Device.GPU)

    @property
    def run_folder(self) -> str:
        """The address of what the job leaves: pvc://CLAIM/FOLDER, or the storage's own."""
        storage = self.job.spec.checkpoint.storage if self.job else None
        if storage is None:
            return ""
        if storage.persistent_volume_claim is None:
            return str(storage.uri).rstrip("/")
        claim = storage.persistent_volume_claim
        return f"pvc://{claim.claim_name}/{claim.sub_path or self.name}".rstrip("/")

    def cluster_name(self, attempt: int) -> str:
        """Its RayCluster of that attempt."""
        return cluster_name(self.name, attempt)


@dataclass(frozen=True)
class Refusal:
    """Why a manifest cannot be run."""

    reason: str
    message: str


@dataclass(frozen=True)
class ClusterSeen:
    """A RayCluster with the job's label."""

    name: str
    uid: str
    is_ours: bool
    """Whether this very job owns it, and not somebody else's of that name."""
    has_other_key: bool
    """Whether an operator with another key made it, whose token its head takes."""
    release: str | None
    """The release of the operator that made it. None: nobody wrote that down."""
    is_deleting: bool
    is_suspended: bool
    """Whether its pods are taken away, by Kueue or by a person."""
    manifest: str | None
    """The ConfigMap with the manifest that its pods mount. None: it has no such volume."""
    wanted: Mapping[str, int]
    """Workers of each node pool."""

    @property
    def wanted_workers(self) -> int:
        """Those of all pools."""
        return sum(self.wanted.values())


@dataclass(frozen=True)
class PodProblem:
    """Why a pod does not come up, or did not stay."""

    reason: str
    """ImagePull, Unschedulable, OutOfMemory, Evicted, CrashLoop, Configuration, ContainerFailed."""
    message: str

    @property
    def outlives_its_pod(self) -> bool:
        """Whether it explains why a pod is gone."""
        return self.reason in ("OutOfMemory", "Evicted", "ContainerFailed")


@dataclass(frozen=True)
class PodSeen:
    """A pod of one of the job's clusters."""

    name: str
    uid: str
    is_head: bool
    is_ready: bool
    created: datetime
    owner: str | None
    """The uid of the RayCluster that looks after it."""
    owner_name: str | None
    """That RayCluster's name. None: no RayCluster does."""
    pool: str | None = None
    """The node pool that it is a worker of. None: it is the head, or nobody knows."""
    deletion_time: datetime | None = None
    """When its grace period ends, or ended. None: it is there to stay."""
    address: str | None = None
    """Its IP address. None: it has none yet."""
    problem: PodProblem | None = None
    is_starting: bool = False
    """Whether its kubelet is about to make its containers: what keeps it from that, events say."""

    @property
    def is_deleting(self) -> bool:
        """Whether it was told to end."""
        return self.deletion_time is not None


class HeadState(Enum):
    """What came of asking the head."""

    NOT_ASKED = auto()
    """There is none that could be asked, or nothing to ask for."""
    UNREACHABLE = auto()
    REFUSED = auto()
    ANSWERED = auto()


@dataclass(frozen=True)
class HeadSeen:
    """What the head said."""

    state: HeadState = HeadState.NOT_ASKED
    message: str = ""
    submissions: tuple[Submission, ...] = ()
    report: StatusReport | None = None
    """The newest report of the last driver; the final one once it ended, where it left one."""
    refused_seconds: float = 0.0
    """For how long it has refused the token, as far as this process knows."""
    silent_seconds: float = 0.0
    """For how long it has not answered, alike."""
    still_seconds: float = 0.0
    """For how long the driver has told nothing new, alike."""
    heartbeat_seconds: int | None = None
    """How often it has promised to, in its last report. None: it has not, or has ended."""
    others_answer: bool = False
    """Whether another head has answered just now: then it is not the operator that is cut off."""

    def submission(self, id: str) -> Submission | None:
        """One of its submissions."""
        return next((each for each in self.submissions if each.id == id), None)


@dataclass(frozen=True)
class PlanSeen:
    """What planning brought: a plan, a refusal, or neither because something is not known."""

    plan: PlanStatus | None = None
    refusal: Refusal | None = None
    unknown: str = ""
    """Why it cannot be planned here, and what to do."""


@dataclass(frozen=True)
class ClaimSeen:
    """The claim that holds checkpoints."""

    exists: bool
    is_shared: bool
    """Whether several nodes may write to it: ReadWriteMany."""


@dataclass(frozen=True)
class Observed:
    """Everything that a decision is made from, but the time."""

    job: JobSeen
    clusters: tuple[ClusterSeen, ...] = ()
    pods: tuple[PodSeen, ...] = ()
    claim: ClaimSeen | None = None
    """None: the job needs none."""
    lacks_code: bool = False
    """Whether the ConfigMap of spec.code is not there."""
    companions_due: bool = False
    """Whether it is time to see to it that its cluster's manifest, token and policy are there."""
    plan: PlanSeen | None = None
    """None: it is being made."""
    has_kuberay: bool = True
    """Whether Kubernetes knows RayClusters."""
    other_release: str | None = None
    """Another release of the operator that looks after the job. None: this one does."""
    head: HeadSeen = field(default_factory=HeadSeen)
    recent: PodProblem | None = None
    """What a pod told lately that may be gone by now."""

    def with_plan(self, plan: PlanSeen | None) -> Observed:
        """The same with what planning brought."""
        return replace(self, plan=plan)

    def with_head(self, head: HeadSeen) -> Observed:
        """The same with what the head said."""
        return replace(self, head=head)

    def with_status(self, status: RLHFJobStatus) -> Observed:
        """The same after the status was written."""
        return replace(self, job=replace(self.job, status=status))

    def cluster(self, name: str) -> ClusterSeen | None:
        """The cluster of that name, ours or not."""
        return next((each for each in self.clusters if each.name == name), None)

    @property
    def own_pods(self) -> tuple[PodSeen, ...]:
        """Pods of clusters that were made for the job: labels alone are anybody's to write."""
        attempts = range(1, self.job.status.attempts + 1)
        names = {self.job.cluster_name(attempt) for attempt in attempts}
        return tuple(pod for pod in self.pods if pod.owner_name in names)

    def pods_of(self, cluster: str) -> tuple[PodSeen, ...]:
        """Those of one of them; where that cluster is there, its very own."""
        seen = self.cluster(cluster)
        return tuple(
            pod
            for pod in self.own_pods
            if pod.owner_name == cluster and (seen is None or pod.owner == seen.uid)
        )

    def head_pod(self, cluster: str) -> PodSeen | None:
        """The head's pod that is there to stay."""
        pods = self.pods_of(cluster)
        return next((pod for pod in pods if pod.is_head and not pod.is_deleting), None)

    def is_ready(self, cluster: ClusterSeen) -> bool:
        """Whether its head and all its workers are ready."""
        pods = [pod for pod in self.pods_of(cluster.name) if not pod.is_deleting and pod.is_ready]
        workers = sum(not pod.is_head for pod in pods)
        return any(pod.is_head for pod in pods) and workers >= cluster.wanted_workers
