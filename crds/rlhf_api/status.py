"""The status of an RLHFJob: observations, actions and memory of the operator, its only writer.

Fractions are strings, because Kubernetes clients do not agree on how to write a float.
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
from rlhf_api.spec.pod.open_schema import UNTYPED_IN_DEFINITION
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.resources import NodePools, PodResources


def _as_kubernetes(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(microsecond=0)


# A time in UTC, to the second.
Time = Annotated[
    AwareDatetime, AfterValidator(_as_kubernetes), Field(json_schema_extra={"maxLength": 32})
]

# metadata.generation of the observed object; -1: none yet.
Generation = Annotated[int, Field(ge=-1, le=2**63 - 1)]

# A number as text, such as 0.71 or 1e-06.
Decimal = Annotated[str, Field(max_length=32, pattern=r"^-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?$")]

# Some lines of text for people.
Message = Annotated[str, Field(max_length=32768)]

# A stable word for programs, such as InvalidReward.
Reason = Annotated[
    str,
    Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
]


class JobPhase(StrEnum):
    """State of a job in one word; its conditions say more."""

    PENDING = "Pending"
    """Accepted or waiting for acceptance; it has no resources."""
    PLANNING = "Planning"
    """The operator is planning it."""
    PROVISIONING = "Provisioning"
    """The pods of its cluster are starting."""
    RUNNING = "Running"
    """Its driver runs."""
    RESTARTING = "Restarting"
    """Something failed; the job is restarting from its newest checkpoint."""
    SUSPENDED = "Suspended"
    """It has released its cluster and waits."""
    SUCCEEDED = "Succeeded"
    """All steps are done."""
    FAILED = "Failed"
    """It ended early and will not restart."""


class ConditionType(StrEnum):
    """Subject of a condition."""

    READY = "Ready"
    """The job has succeeded."""
    RECONCILING = "Reconciling"
    """The job is moving towards its spec; present only while true."""
    STALLED = "Stalled"
    """The job cannot continue without a change; present only while true."""
    ACCEPTED = "Accepted"
    """The manifest can be run."""
    PLANNED = "Planned"
    """The plan exists and fits."""
    CLUSTER_READY = "ClusterReady"
    """The head and all workers of the cluster are ready."""
    SUSPENDED = "Suspended"
    """The job waits because its own spec or a queue suspends it."""
    COMPLETE = "Complete"
    """All steps are done."""
    FAILED = "Failed"
    """The job ended before all steps were done."""
    CHECKPOINTS_FAILING = "CheckpointsFailing"
    """The last checkpoint could not be written, or the driver waits for space; present only while
    true."""


class ConditionStatus(StrEnum):
    """Truth of a condition."""

    TRUE = "True"
    """The condition holds."""
    FALSE = "False"
    """The condition does not hold."""
    UNKNOWN = "Unknown"
    """The operator cannot determine it."""


# A value that a later release may have added to an enumeration.
Word = Annotated[str, Field(min_length=1, max_length=63)]

# Marks a field that accepts the values of its enumeration and any other word.
# A reader may be older than the writer. The Kubernetes schema lists no values in a status at all.
OPEN = Field(union_mode="left_to_right")


class Condition(Contract):
    """One observation, in the form of Kubernetes' conditions."""

    type: Annotated[ConditionType | Word, OPEN]
    """Subject of the condition; types are unique."""
    status: Annotated[ConditionStatus | Word, OPEN]
    """True, False or Unknown."""
    observed_generation: Generation | None = None
    """The metadata.generation that was observed."""
    last_transition_time: Time
    """Time of the last change of status."""
    reason: Reason
    """Stable word for programs that states the reason."""
    message: Message
    """Explanation for people, and how to fix a problem."""


class DefaultsStatus(Contract):
    """Values of the chart's jobDefaults for fields that the manifest leaves out. They are fixed
    from the job's acceptance to its end, whatever happens to the chart."""

    # A second typed copy of pools and pods would be a tenth of the definition.
    model_config = UNTYPED_IN_DEFINITION

    image: ImageSpec | None = None
    """Like spec.image. Default: the manifest sets it."""
    node_pools: NodePools = ()
    """Like spec.resources.nodePools. Default: the manifest sets them."""
    storage: CheckpointStorage | None = None
    """Like spec.checkpoint.storage. Default: the manifest sets it."""
    head: PodResources = PodResources()
    """Like spec.resources.head."""
    worker: PodResources = PodResources()
    """Like resources of every entry of spec.resources.nodePools."""
    pod: PodTemplate | None = None
    """Like spec.resources.pod. Default: nothing."""
    head_pod: PodTemplate | None = None
    """Like spec.resources.headPod. Default: nothing."""
    worker_pod: PodTemplate | None = None
    """Like pod of every entry of spec.resources.nodePools. Default: nothing."""


class PlanStatus(Contract):
    """Summary of the plan; the complete plan is in the run's folder."""

    placement: Annotated[PlacementType | Word, OPEN]
    """Type of placement of roles on devices."""
    pools: Annotated[tuple[PoolPart, ...], Field(max_length=16)] = ()
    """Devices that the job uses in each node pool. Default: an earlier release planned the job."""
    step_seconds: Decimal | None = None
    """Expected seconds of a step. Default: unknown, as on CPUs or GPUs of unknown speed."""
    tokens_per_second: NonNegativeCount | None = None
    """Expected prompt and response tokens per second. Default: unknown."""
    hardware: Text | None = None
    """Assumed hardware of these estimates. Default: the speed of the devices is unknown."""
    peak_memory_bytes: Annotated[int, Field(ge=0, le=2**63 - 1)]
    """Expected peak memory of the fullest device."""
    summary: Annotated[str, Field(max_length=4096)]
    """Placement of all calls, on one line."""


class ProgressStatus(Contract):
    """Progress of the job, from the last accepted report of its driver."""

    phase: Identifier
    """Activity of the run, such as WarmStart, Train or Restart."""
    step: NonNegativeCount
    """Steps done."""
    total_steps: NonNegativeCount
    """Steps to do."""
    percent: Annotated[int, Field(ge=0, le=100)]
    """Steps done, in percent."""
    seconds_remaining: NonNegativeCount | None = None
    """Estimated seconds to the end. Default: not known yet."""
    tokens_per_second: NonNegativeCount | None = None
    """Prompt and response tokens per second of the last step. Default: not known yet."""
    reward: Decimal | None = None
    """Mean reward of the last step. Default: none yet."""
    metrics: Annotated[dict[MetricName, Decimal], Field(max_length=64)] = {}
    """Main metrics of the last step."""
    last_report_time: Time
    """Time at which the operator accepted the report."""


class CheckpointStatus(CheckpointReport):
    """The last complete checkpoint."""

    time: Time | None = None
    """Time at which the operator learned of it. Default: an earlier release wrote the status."""


class RestartStatus(Contract):
    """Numbers of restarts."""

    incarnations: NonNegativeCount = 0
    """Restarts of all workers by their driver."""
    drivers: NonNegativeCount = 0
    """Restarts of the driver on the same cluster."""
    clusters: NonNegativeCount = 0
    """Replacements of the cluster."""
    total: NonNegativeCount = 0
    """Sum of these since the job was created."""
    since_checkpoint: NonNegativeCount = 0
    """Restarts since the last new checkpoint that count; failurePolicy.maxRestarts limits them."""
    disruptions: NonNegativeCount = 0
    """Restarts that followed a drained, preempted or lost node, as part of total."""
    disruptions_since_checkpoint: NonNegativeCount = 0
    """The same since the last new checkpoint; failurePolicy.maxDisruptions limits them."""
    in_a_row: NonNegativeCount = 0
    """Restarts since the last new checkpoint, including those that do not count; the backoff grows
    with them."""
    steps_repeated: NonNegativeCount = 0
    """Steps that were repeated because no checkpoint contained them."""
    next_time: Time | None = None
    """Time of the next restart. Default: none is due."""
    by_reason: Annotated[dict[Reason, NonNegativeCount], Field(max_length=16)] = {}
    """Restarts by reason, as part of total; `Other` counts further reasons. Restarts under an
    earlier release have none."""


class ClusterStatus(Contract):
    """The RayCluster of the job."""

    name: Name
    """Name of the RayCluster, in the job's namespace."""
    attempt: NonNegativeCount
    """Number of the cluster among the job's clusters."""
    manifest_digest: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]+$")] | None = None
    """Digest of the manifest, with defaults, from which the cluster and its drivers were created.
    Fields that may change while they run do not count. Default: an earlier release created them."""
    head_pod_uid: Name | None = None
    """UID of the head pod of the last submission; another UID means a new head. Default: none
    yet."""
    replace_workers_before: Time | None = None
    """Worker pods older than this are replaced, to remove state of an earlier driver. Default:
    none."""
    admitted: bool = False
    """True if a queue has admitted the cluster; without a queue always true."""


class DriverStatus(Contract):
    """The last submitted driver."""

    submission_id: Text
    """Submission id in Ray's Jobs API: job, attempt and restart."""
    attempt: NonNegativeCount
    """Number of its cluster among the job's clusters."""
    restart: NonNegativeCount
    """Number of its restart on that cluster."""
    sequence: NonNegativeCount | None = None
    """Sequence number of its last accepted report. Default: none yet."""
    stop_time: Time | None = None
    """Time of the first request to save and stop. Default: no request."""
    has_ended: bool = False
    """True if its process has exited for good."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    """Exit code of the driver. Default: it has not ended, or the code is unknown."""
    incarnations: NonNegativeCount = 0
    """Number of times it has replaced its workers, as already counted in restarts."""
    disruptions: NonNegativeCount = 0
    """Incarnations that followed the loss of a node, as already counted in restarts."""
    steps_repeated: NonNegativeCount = 0
    """Steps that it has repeated, as already counted in restarts."""
    checkpoint_failures: NonNegativeCount = 0
    """Checkpoints that it could not write, as already counted in the job's checkpointFailures."""


class ArtifactStatus(Contract):
    """Results of the job. They remain after the cluster and the RLHFJob are deleted."""

    checkpoints: Text | None = None
    """Address of the checkpoints. Default: none yet."""
    model: Text | None = None
    """Address of the trained model, in Hugging Face format. Default: none yet."""
    report: Text | None = None
    """Address of the report with curves and timeline. Default: none yet."""


class RLHFJobStatus(Contract):
    """Observed state of a job."""

    observed_generation: Generation = -1
    """The metadata.generation that this status describes; -1: not observed yet."""
    phase: Annotated[JobPhase | Word, OPEN] = JobPhase.PENDING
    """State of the job in one word."""
    reason: Reason | None = None
    """Stable word for programs that states the reason. Default: the job runs normally."""
    message: Message = ""
    """Explanation for people, and how to fix a problem."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
    """Conditions, one of each type."""
    phase_time: Time | None = None
    """Time of the last change of phase. Default: an earlier release wrote the status."""
    phase_seconds: Annotated[dict[Word, NonNegativeCount], Field(max_length=16)] = {}
    """Seconds in phases that the job has left, by phase."""
    start_time: Time | None = None
    """Time of the first driver's submission. Default: none was submitted."""
    completion_time: Time | None = None
    """Time at which the job succeeded or failed. Default: it has not ended."""
    gpus: NonNegativeCount = 0
    """Number of GPUs that its pods occupy. Pods that wait for a node have none."""
    busy_gpus: NonNegativeCount = 0
    """The same while its workers train; 0 while they wait, start or load."""
    gpus_accounted_time: Time | None = None
    """Time up to which gpuSeconds is counted. Default: the job uses no GPU."""
    gpu_seconds: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """GPUs times seconds used since the job was created."""
    idle_gpu_seconds: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """The part of gpuSeconds in which they were not busy."""
    defaults: DefaultsStatus | None = None
    """Values of the chart's jobDefaults for fields that the manifest leaves out. Default: the job
    is not accepted yet."""
    plan: PlanStatus | None = None
    """Summary of the plan. Default: none yet."""
    progress: ProgressStatus | None = None
    """Progress of the job. Default: its driver has not reported yet."""
    checkpoint: CheckpointStatus | None = None
    """The last complete checkpoint. Default: none yet."""
    checkpoint_failures: NonNegativeCount = 0
    """Checkpoints that could not be written since the job was created."""
    takeover: Text | None = None
    """Sentence for people about the takeover of its folder from an earlier run. Default: the folder
    was new, or its driver has not reported yet."""
    restarts: RestartStatus = RestartStatus()
    """Numbers of restarts."""
    attempts: NonNegativeCount = 0
    """Number of clusters created for the job."""
    cluster: ClusterStatus | None = None
    """The RayCluster of the job. Default: none."""
    driver: DriverStatus | None = None
    """The last submitted driver. Default: none was submitted."""
    artifacts: ArtifactStatus = ArtifactStatus()
    """Results of the job."""
