"""The status of an RLHFJob: what the operator found, did and has to remember. Only it writes this.

Fractions are texts, because Kubernetes' clients do not agree on how to write a float.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from rlhf_api.base import Contract, Identifier, Name, NonNegativeCount, Text
from rlhf_api.plan_estimate import PoolPart
from rlhf_api.report import CheckpointReport, MetricName
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import NodePools, PodResources


def _as_kubernetes(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(microsecond=0)


Time = Annotated[
    AwareDatetime, AfterValidator(_as_kubernetes), Field(json_schema_extra={"maxLength": 32})
]
"""A point in time, in UTC and to the second."""

Generation = Annotated[int, Field(ge=-1, le=2**63 - 1)]
"""metadata.generation of what was looked at; -1: of nothing yet."""

Decimal = Annotated[str, Field(max_length=32, pattern=r"^-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?$")]
"""A number as text, such as 0.71 or 1e-06."""

Message = Annotated[str, Field(max_length=32768)]
"""Some lines for people."""

Reason = Annotated[
    str,
    Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
]
"""A stable word for programs, such as InvalidReward."""


class JobPhase(StrEnum):
    """Where a job is, in one word. Conditions say more."""

    PENDING = "Pending"
    """Accepted, or about to be; it holds nothing."""
    PLANNING = "Planning"
    """Its plan is being made."""
    PROVISIONING = "Provisioning"
    """Its cluster's pods are being made."""
    RUNNING = "Running"
    """Its driver runs."""
    RESTARTING = "Restarting"
    """Something failed, and it is being started again from its newest checkpoint."""
    SUSPENDED = "Suspended"
    """It gave its cluster back and waits."""
    SUCCEEDED = "Succeeded"
    """All steps are done."""
    FAILED = "Failed"
    """It ended before that and is not started again."""


class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"
    """The job has succeeded."""
    RECONCILING = "Reconciling"
    """The job is on its way to what its spec says; there only while it is true."""
    STALLED = "Stalled"
    """The job cannot go on without a change; there only while it is true."""
    ACCEPTED = "Accepted"
    """The manifest can be run."""
    PLANNED = "Planned"
    """The plan is made, and fits."""
    CLUSTER_READY = "ClusterReady"
    """The head and all workers of the cluster are ready."""
    SUSPENDED = "Suspended"
    """The job was told to wait, by its own spec or by a queue."""
    COMPLETE = "Complete"
    """All steps are done."""
    FAILED = "Failed"
    """The job ended before that."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    """It does."""
    FALSE = "False"
    """It does not."""
    UNKNOWN = "Unknown"
    """This cannot be told."""


Word = Annotated[str, Field(min_length=1, max_length=63)]
"""A value that a later release may have added to an enumeration."""

OPEN = Field(union_mode="left_to_right")
"""Marks a field that takes what its enumeration lists, and any other word: who reads a status may
be older than who wrote it. The Kubernetes schema lists no values in a status at all."""


class Condition(Contract):
    """One observation, in the form of Kubernetes' conditions."""

    type: Annotated[ConditionType | Word, OPEN]
    """What it is about; there is one of each type at most."""
    status: Annotated[ConditionStatus | Word, OPEN]
    """True, False or Unknown."""
    observed_generation: Generation | None = None
    """The metadata.generation that it is about."""
    last_transition_time: Time
    """When its status last changed."""
    reason: Reason
    """Why, as a stable word for programs."""
    message: Message
    """Why, and what to do about it."""


class DefaultsStatus(Contract):
    """What the chart's jobDefaults gave the job where its manifest says nothing. It is kept from
    the job's acceptance to its end, whatever becomes of the chart."""

    image: ImageSpec | None = None
    """As spec.image. Default: the manifest has its own."""
    node_pools: NodePools = ()
    """As spec.resources.nodePools. Default: the manifest has its own."""
    storage: CheckpointStorage | None = None
    """As spec.checkpoint.storage. Default: the manifest has its own."""
    head: PodResources = PodResources()
    """As spec.resources.head."""
    worker: PodResources = PodResources()
    """As resources of each of spec.resources.nodePools."""


class PlanStatus(Contract):
    """The plan in short; the whole one is in the run's folder."""

    placement: Annotated[PlacementType | Word, OPEN]
    """How roles share devices."""
    pools: Annotated[tuple[PoolPart, ...], Field(max_length=16)] = ()
    """Devices that it takes of each node pool. Default: an earlier release planned."""
    step_seconds: Decimal | None = None
    """Expected seconds of a step. Default: not known, as on CPUs or GPUs of unknown speed."""
    tokens_per_second: NonNegativeCount | None = None
    """Expected prompt and response tokens per second. Default: not known."""
    hardware: Text | None = None
    """What the devices are taken to be in that. Default: their speed is not known."""
    peak_memory_bytes: Annotated[int, Field(ge=0, le=2**63 - 1)]
    """Expected memory of the fullest device at its fullest."""
    summary: Annotated[str, Field(max_length=4096)]
    """Which call runs where, on one line."""


class ProgressStatus(Contract):
    """How far the job is, by its driver's last accepted report."""

    phase: Identifier
    """What the run is doing, such as WarmStart, Train or Restart."""
    step: NonNegativeCount
    """Steps done."""
    total_steps: NonNegativeCount
    """Steps to do."""
    percent: Annotated[int, Field(ge=0, le=100)]
    """Steps done, of 100."""
    seconds_remaining: NonNegativeCount | None = None
    """Estimated time to the end. Default: not known yet."""
    tokens_per_second: NonNegativeCount | None = None
    """Prompt and response tokens per second of the last step. Default: not known yet."""
    reward: Decimal | None = None
    """Mean reward of the last step. Default: there was none yet."""
    metrics: Annotated[dict[MetricName, Decimal], Field(max_length=64)] = {}
    """The last step's most telling metrics."""
    last_report_time: Time
    """When the report was taken."""


class RestartStatus(Contract):
    """How often what was started again."""

    incarnations: NonNegativeCount = 0
    """All workers by their driver."""
    drivers: NonNegativeCount = 0
    """The driver on the same cluster."""
    clusters: NonNegativeCount = 0
    """The cluster itself."""
    total: NonNegativeCount = 0
    """Their sum since the job was made."""
    since_checkpoint: NonNegativeCount = 0
    """Their sum since the last new checkpoint: failurePolicy.maxRestarts limits it."""
    in_a_row: NonNegativeCount = 0
    """All since the last new checkpoint, also uncounted ones: the wait grows with them."""
    steps_repeated: NonNegativeCount = 0
    """Steps that were done again because no checkpoint held them."""
    next_time: Time | None = None
    """When the next one begins. Default: none is due."""


class ClusterStatus(Contract):
    """The RayCluster that the job runs on."""

    name: Name
    """Its name, in the job's namespace."""
    attempt: NonNegativeCount
    """Counts the job's clusters up."""
    manifest_digest: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]+$")] | None = None
    """A digest of the manifest, with defaults, that the cluster and its drivers were made from,
    without what may change while they run. Default: an earlier release made them."""
    head_pod_uid: Name | None = None
    """The head's pod that was last submitted to; another one is a new head. Default: none yet."""
    replace_workers_before: Time | None = None
    """Workers that were made before then are replaced, for what an earlier driver left on them.
    Default: none are."""
    admitted: bool = False
    """Whether a queue ever let it in; without a queue from the start."""


class DriverStatus(Contract):
    """The driver that was last submitted."""

    submission_id: Text
    """Its submission in Ray's Jobs API: job, attempt and restart."""
    attempt: NonNegativeCount
    """Counts clusters up."""
    restart: NonNegativeCount
    """Counts its restarts on one cluster up."""
    sequence: NonNegativeCount | None = None
    """The last report of it that was accepted. Default: none yet."""
    stop_time: Time | None = None
    """When it was first told to save and end. Default: it was not."""
    has_ended: bool = False
    """Whether its process is gone for good."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    """How it ended. Default: it did not, or nobody could tell."""
    incarnations: NonNegativeCount = 0
    """How often it replaced its workers, as counted in restarts already."""
    steps_repeated: NonNegativeCount = 0
    """Steps that it did again, as counted in restarts already."""


class ArtifactStatus(Contract):
    """What the job leaves, and where. It stays when the cluster and the RLHFJob are gone."""

    checkpoints: Text | None = None
    """The address under which checkpoints lie. Default: none yet."""
    model: Text | None = None
    """The trained model, in Hugging Face format. Default: none yet."""
    report: Text | None = None
    """The report with curves and timeline. Default: none yet."""


class RLHFJobStatus(Contract):
    """What became of a job so far."""

    observed_generation: Generation = -1
    """The metadata.generation that everything here is about; -1: nobody has looked yet."""
    phase: Annotated[JobPhase | Word, OPEN] = JobPhase.PENDING
    """Where the job is, in one word."""
    reason: Reason | None = None
    """Why, as a stable word for programs. Default: it goes as it should."""
    message: Message = ""
    """Why, and what to do about it."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
    """What holds and what does not, one of each type."""
    start_time: Time | None = None
    """When the first driver was submitted. Default: none was."""
    completion_time: Time | None = None
    """When the job succeeded or failed. Default: it has not ended."""
    gpus: NonNegativeCount = 0
    """GPUs that it holds now."""
    gpus_accounted_time: Time | None = None
    """Until when gpuSeconds counts them. Default: it holds none."""
    gpu_seconds: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """GPUs times seconds that it held them, since it was made."""
    defaults: DefaultsStatus | None = None
    """What the chart gave the job where its manifest says nothing. Default: it was not accepted
    yet."""
    plan: PlanStatus | None = None
    """The plan in short. Default: not made yet."""
    progress: ProgressStatus | None = None
    """How far it is. Default: its driver has not reported yet."""
    checkpoint: CheckpointReport | None = None
    """The last complete checkpoint. Default: none yet."""
    restarts: RestartStatus = RestartStatus()
    """How often what was started again."""
    attempts: NonNegativeCount = 0
    """Clusters that were made for it so far."""
    cluster: ClusterStatus | None = None
    """The RayCluster that it runs on. Default: it has none."""
    driver: DriverStatus | None = None
    """The driver that was last submitted. Default: none was."""
    artifacts: ArtifactStatus = ArtifactStatus()
    """What it leaves, and where."""
