"""RLHFJob: the manifest."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Count,
    Identifier,
    JobName,
    Name,
    NonNegativeCount,
    ObjectAnnotations,
    ObjectLabels,
    ObjectName,
)
from rlhf_api.problems import FieldPath, path_text
from rlhf_api.spec.algorithm import AlgorithmSpec
from rlhf_api.spec.checkpoint import CheckpointSpec
from rlhf_api.spec.cluster import CodeSpec, HubSpec, ImageSpec
from rlhf_api.spec.cross_field import SPEC_RULES
from rlhf_api.spec.data import DataSpec
from rlhf_api.spec.environment import Environment
from rlhf_api.spec.failure import FailurePolicy
from rlhf_api.spec.models import ModelSource, ModelSpec
from rlhf_api.spec.placement import PlacementSpec
from rlhf_api.spec.resources import ResourcesSpec
from rlhf_api.spec.rewards import ModelReward, RewardSpec
from rlhf_api.spec.rollout import RolloutSpec
from rlhf_api.spec.schedule import ScheduleSpec
from rlhf_api.spec.telemetry import TelemetrySpec


class Metadata(Contract):
    """The fields of Kubernetes' object metadata that a manifest may have."""

    name: JobName
    """The job's name; pods and services of its cluster are named after it."""
    namespace: Name | None = None
    """Namespace on a cluster."""
    labels: ObjectLabels = {}
    """Labels. Kueue's queue name is copied to the RayCluster."""
    annotations: ObjectAnnotations = {}
    """Annotations."""


class ManifestModel(NamedTuple):
    """The manifest's description of a role's model."""

    location: FieldPath
    """Path of the description in the spec, such as ("models", "actor")."""
    model: ModelSpec

    @property
    def field(self) -> str:
        """The path as text, such as models.actor."""
        return path_text(self.location)


class RLHFJobSpec(Contract):
    """The job: algorithm, models, data, schedule and resources."""

    algorithm: AlgorithmSpec
    """The algorithm and its settings."""
    models: Annotated[dict[Identifier, ModelSpec], Field(min_length=1, max_length=16)]
    """Models, one entry per role; other roles start from the actor's weights. Built-in algorithms
    require the actor (RewardModel: reward_model). A custom algorithm without an actor requires an
    entry for every role with a model. Reward models belong in rewards."""
    rollout: RolloutSpec = RolloutSpec()
    """Generation and sampling."""
    rewards: Annotated[tuple[RewardSpec, ...], Field(max_length=16)] = ()
    """Terms of the reward of a response, which is their weighted sum. Algorithms that sample
    require one; for others rewards score only the responses of evaluation."""
    data: DataSpec
    """Training and evaluation data."""
    schedule: ScheduleSpec
    """Steps and batches."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints: frequency, retention and storage."""
    resources: ResourcesSpec = ResourcesSpec()
    """Node pools and devices. `rlhf run` uses the devices of the machine instead."""
    placement: PlacementSpec = PlacementSpec()
    """Placement of roles on devices."""
    telemetry: TelemetrySpec = TelemetrySpec()
    """Samples of responses, and trackers besides metrics.jsonl and the report."""
    code: CodeSpec | None = None
    """The user's own Python code."""
    image: ImageSpec | None = None
    """Container image. Default: the chart's jobDefaults."""
    hub: HubSpec | None = None
    """Access to the Hugging Face hub."""
    env: Environment = ()
    """Environment variables of all pods. `rlhf run` ignores them and keeps its own environment."""
    failure_policy: FailurePolicy = FailurePolicy()
    """Restarts and their limits."""
    active_deadline_seconds: Count | None = None
    """Longest time from start to end, including restarts. It begins again after a suspension or
    eviction."""
    start_deadline_seconds: Count | None = None
    """Longest wait for the cluster's pods."""
    cluster_ttl_seconds: Annotated[NonNegativeCount | None, Field(alias="clusterTTLSeconds")] = None
    """Time for which the head pod is kept after the job's end, with its logs and dashboard. The
    workers are released at once, except in a queue. The RLHFJob itself is never deleted. Default:
    ttlSecondsAfterFinished."""
    ttl_seconds_after_finished: NonNegativeCount = 0
    """Deprecated: write clusterTTLSeconds, which means the same. Later API versions delete the job
    itself after this time."""
    suspend: bool = False
    """If true, the job releases its cluster and waits."""
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Controller that reconciles this job. Default: this operator."""
    priority_class_name: ObjectName | None = None
    """Priority class of all pods."""

    validations: ClassVar = SPEC_RULES

    @property
    def seconds_cluster_is_kept(self) -> int:
        """Time for which the head pod is kept after the job's end."""
        if self.cluster_ttl_seconds is None:
            return self.ttl_seconds_after_finished
        return self.cluster_ttl_seconds

    @property
    def reward_models(self) -> dict[str, ModelReward]:
        """The models of rewards, by their roles."""
        return {
            reward.model_role: reward.model for reward in self.rewards if reward.model is not None
        }

    @property
    def manifest_models(self) -> dict[str, ManifestModel]:
        """All models that the manifest describes, by role."""
        listed = {
            role: ManifestModel(("models", role), model) for role, model in self.models.items()
        }
        return listed | {
            reward.model_role: ManifestModel(("rewards", index, "model"), reward.model.as_model)
            for index, reward in enumerate(self.rewards)
            if reward.model is not None
        }

    def has_model_for(self, role: str) -> bool:
        """True if the manifest describes the role's model, or the actor's, whose weights it then
        starts from."""
        # Without an entry of its own a role starts from the actor.
        return role in self.manifest_models or "actor" in self.models

    def model_for(self, role: str) -> ModelSpec:
        """The model of a role. A role that the manifest leaves out starts from the actor's
        weights."""
        described = self.manifest_models.get(role)
        if described is not None:
            return described.model
        # Tracing has refused a job without an actor that needs one.
        return ModelSpec(
            source=ModelSource(same_as="actor"),
            shape=self.models["actor"].shape,
            training=self.models["actor"].training,
        )

    @property
    def pretraining_rows_per_step(self) -> int | None:
        """Rows of data.pretraining that a step trains on; None without such data."""
        pretraining = self.data.pretraining
        if pretraining is None:
            return None
        return pretraining.rows_per_step or self.schedule.prompts_per_step

    def origin_role(self, role: str) -> str:
        """The role whose source provides this role's weights: the role itself, unless it has
        sameAs."""
        return self.model_for(role).source.same_as or role


class RLHFJob(Contract):
    """One RLHF post-training job."""

    api_version: Literal["rlhf-operator.dev/v1alpha1"]
    """The contract's version: rlhf-operator.dev/v1alpha1."""
    kind: Literal["RLHFJob"]
    """The object's kind: RLHFJob."""
    metadata: Metadata
    """Name, labels, annotations."""
    spec: RLHFJobSpec
    """The job: algorithm, models, data, schedule and resources."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name
