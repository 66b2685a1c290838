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

GROUP = "rlhf-operator.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RLHFJob"


class Metadata(Contract):
    """The part of Kubernetes' object metadata that a manifest may carry."""

    name: JobName
    """The job's name; the pods and services of a cluster are named after it."""
    namespace: Name | None = None
    """Namespace on a cluster."""
    labels: ObjectLabels = {}
    """Labels; Kueue's queue name is passed to the RayCluster."""
    annotations: ObjectAnnotations = {}
    """Annotations."""


class ManifestModel(NamedTuple):
    """A role's model, as the manifest has it."""

    location: FieldPath
    """Of the field of the spec that describes it, such as ("models", "actor")."""
    model: ModelSpec

    @property
    def field(self) -> str:
        """That field in words, such as models.actor."""
        return path_text(self.location)


class RLHFJobSpec(Contract):
    """What to train, on what, and how."""

    algorithm: AlgorithmSpec
    """The algorithm and its settings."""
    models: Annotated[dict[Identifier, ModelSpec], Field(min_length=1, max_length=16)]
    """One entry per role; a role left out starts from the actor's weights. Built-in algorithms need
    the actor (RewardModel reward_model), a custom one every role with a model where there is no
    actor. Reward models stand in rewards."""
    rollout: RolloutSpec = RolloutSpec()
    """Generation and sampling."""
    rewards: Annotated[tuple[RewardSpec, ...], Field(max_length=16)] = ()
    """What a response is worth: a weighted sum. Algorithms that sample need one; where an algorithm
    has no role for them, they score held-out answers."""
    data: DataSpec
    """Training and evaluation data."""
    schedule: ScheduleSpec
    """Steps and batches."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """How often state is saved, and where."""
    resources: ResourcesSpec = ResourcesSpec()
    """Devices. `rlhf run` replaces them by those of the machine."""
    placement: PlacementSpec = PlacementSpec()
    """How roles share devices."""
    telemetry: TelemetrySpec = TelemetrySpec()
    """Trackers besides metrics.jsonl and the report."""
    code: CodeSpec | None = None
    """The user's own Python code."""
    image: ImageSpec | None = None
    """Container image. Default: the chart's jobDefaults."""
    hub: HubSpec | None = None
    """Access to the Hugging Face hub."""
    env: Environment = ()
    """Environment variables of all pods. `rlhf run` does without them, and keeps its own."""
    failure_policy: FailurePolicy = FailurePolicy()
    """Restarts and their limits."""
    active_deadline_seconds: Count | None = None
    """Longest time from start to end, restarts included. Anew after a suspension or eviction."""
    start_deadline_seconds: Count | None = None
    """Longest wait for the cluster's pods."""
    ttl_seconds_after_finished: NonNegativeCount = 0
    """How long the cluster is kept after the end; the RLHFJob itself is never deleted."""
    suspend: bool = False
    """Whether the job gives its cluster back and waits."""
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Controller that reconciles this job. Default: this operator."""
    priority_class_name: ObjectName | None = None
    """Priority class of all pods."""

    validations: ClassVar = SPEC_RULES

    @property
    def reward_models(self) -> dict[str, ModelReward]:
        """The models of rewards, by their roles."""
        return {each.model_role: each.model for each in self.rewards if each.model is not None}

    @property
    def manifest_models(self) -> dict[str, ManifestModel]:
        """Every model that the manifest describes, by its role."""
        listed = {role: ManifestModel(("models", role), each) for role, each in self.models.items()}
        return listed | {
            each.model_role: ManifestModel(("rewards", index, "model"), each.model.as_model)
            for index, each in enumerate(self.rewards)
            if each.model is not None
        }

    def has_model_for(self, role: str) -> bool:
        """Whether a role's model is given, or the actor's, from whose weights others start."""
        return role in self.manifest_models or "actor" in self.models

    def model_for(self, role: str) -> ModelSpec:
        """The model of a role; one that the manifest leaves out starts from the actor's weights.

        Where there is no actor either, tracing refuses the job."""
        given = self.manifest_models.get(role)
        if given is not None:
            return given.model
        return ModelSpec(
            source=ModelSource(same_as="actor"),
            shape=self.models["actor"].shape,
            training=self.models["actor"].training,
        )

    @property
    def pretraining_rows_per_step(self) -> int | None:
        """Rows of data.pretraining that a step trains on; None: there are none."""
        pretraining = self.data.pretraining
        if pretraining is None:
            return None
        return pretraining.rows_per_step or self.schedule.prompts_per_step

    def origin_role(self, role: str) -> str:
        """The role whose source this role's weights come from: itself unless it has sameAs."""
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
    """What to train, on what, and how."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name
