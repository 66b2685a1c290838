"""What is planned: the calls and models of a job, what it works on, its devices, and what of the
plan is decided already.

This is all that the planner looks at. It has no manifest in it; `problem_of` makes it from one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rlhf_api.plan import GraphName, ModelHead, Pool
from rlhf_api.spec.models import Offload, Precision, TrainingEngineType
from rlhf_api.spec.placement import PlacementSpec
from rlhf_api.spec.resources import Device
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.jobs.job_graphs import policy_role
from rlhf_flow.trace.graph import Graph
from rlhf_planner.problem.devices import device_of
from rlhf_planner.problem.profile import Profile
from rlhf_sizing.shape import DecoderShape

Graphs = Mapping[GraphName, Graph]
"""The graphs of a job."""


@dataclass(frozen=True)
class Workload:
    """What a job works on."""

    prompts_per_step: int
    """Prompts of a step."""
    warm_start_rows: int
    """Rows of a step of the warm start. 0 without."""
    pretraining_rows: int
    """Rows for pretraining of a step. 0 without."""
    evaluation_prompts: int | None
    """Prompts of an evaluation, at most. None: there is none, or it has no limit."""
    max_prompt_tokens: int
    """Longest prompt."""
    max_response_tokens: int
    """Longest response."""
    expected_prompt_tokens: float
    """Tokens of a prompt, on average."""
    expected_response_tokens: float
    """Tokens of a response, on average."""
    max_concurrent_sequences: int
    """Sequences that one generation engine decodes at once, at most."""
    updates_per_epoch: int
    """Optimizer steps in one pass over a step's batch."""

    @property
    def other_rows(self) -> int:
        """Rows of the largest batch that is not made of a step's prompts. 0 without."""
        return max(self.warm_start_rows, self.pretraining_rows)

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


@dataclass(frozen=True)
class FixedStrategy:
    """What is decided already of how a role computes."""

    tensor: int | None = None
    """Ranks over which each layer is cut. None: the plan's choice; 1 where it chooses nothing."""
    pipeline: int | None = None
    """Stages over which the layers are distributed. None: as above."""
    micro_batch_tokens: int | None = None
    """Padded tokens that a rank runs through the model at once. None: the plan's choice."""
    recompute: bool | None = None
    """Whether activations are computed again for the backward pass. None: the plan's choice."""
    offload: Offload = Offload.AUTO
    """Whether it leaves its devices while others work there; Auto: the plan's choice."""

    @property
    def num_ranks(self) -> int:
        """Devices that hold the model once, as far as it is decided."""
        return (self.tensor or 1) * (self.pipeline or 1)


@dataclass(frozen=True)
class RoleSpec:
    """A role with a model: what is known of it before it has devices."""

    role: str
    """Its name."""
    origin: str
    """The role whose source its weights come from: itself or another."""
    trained_as: str
    """The entry of models that says how it is trained, for messages."""
    head: ModelHead
    """What its model ends in."""
    shape: DecoderShape
    """Its dimensions."""
    precision: Precision
    """Number format of its computation: float32 or bfloat16, never Auto."""
    engine: TrainingEngineType
    """What trains it, or runs it forward."""
    is_trained: bool
    """Whether a call of some graph trains it."""
    generates: bool
    """Whether a call of some graph generates with it."""
    is_saved: bool
    """Whether checkpoints hold its state."""
    rows_per_prompt: int
    """Rows that it works on in one call of a step, for each of the step's prompts, at most."""
    rows_together: int
    """Rows of a prompt that are always on one rank: all where its loss compares them, else one."""
    sequence_parallel: bool
    """Whether Megatron's tensor ranks share the tokens where layers are not cut."""
    distributed_optimizer: bool
    """Whether Megatron's replicas share master weights and moments."""
    fixed: FixedStrategy
    """What is decided already of how it computes."""

    @property
    def num_parameters(self) -> int:
        """Parameters, exactly."""
        return self.shape.parameters_with(self.head)

    @property
    def uses_megatron(self) -> bool:
        """Whether Megatron trains it, or runs it forward."""
        return self.engine is TrainingEngineType.MEGATRON


@dataclass(frozen=True)
class Constraints:
    """What is decided already of the job as a whole."""

    placement: PlacementSpec
    """Which devices hold which roles, as far as it says so."""
    engine_tensor: int | None = None
    """Ranks of a generation engine, where placement does not say it. None: the plan's choice."""
    kv_cache_bytes: int | None = None
    """Cache of generation on each device. None: the plan's choice."""
    kv_cache_memory: str | None = None
    """The same as it is written, for messages."""
    standby: bool | None = None
    """Whether libraries stay in memory for the next start. None: where they fit."""
    saves_while_training: bool = False
    """Whether a copy of the state is written beside steps."""
    stage_fusion: StageFusionType = StageFusionType.AUTO
    """Whether calls begin before the last response of a step has ended."""
    stage_fusion_threshold: int | None = None
    """Responses that are left then, at most. None: the plan's choice."""


@dataclass(frozen=True)
class PlanningProblem:
    """All that a plan depends on."""

    name: str
    """The job's name."""
    graphs: Graphs
    """What it computes."""
    models: Mapping[str, RoleSpec]
    """Of every role with a model, in the order in which the algorithm names them."""
    pools: tuple[Pool, ...]
    """The devices that it may take, all of one kind."""
    workload: Workload
    """What it works on."""
    fixed: Constraints
    """What is decided already."""
    profile: Profile | None = None
    """Measured on such devices. None: times come from data sheets."""

    @property
    def device(self) -> Device:
        """What ranks compute on."""
        return device_of(self.pools)

    @cached_property
    def policy(self) -> str:
        """The role whose model the job leaves."""
        return policy_role(self.graphs[GraphName.STEP])
