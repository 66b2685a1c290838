"""The planning problem: graphs and models of a job, workload, devices, and fixed choices.

The planner reads nothing else. A problem holds no manifest; `problem_of` makes it from one.
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

# The graphs of a job.
Graphs = Mapping[GraphName, Graph]


@dataclass(frozen=True)
class ConversationWorkload:
    """Responses that are conversations."""

    turns: float
    """Mean number of turns."""
    max_turns: int
    """Limit of turns."""
    sampled_share: float
    """Share of a response's tokens that are sampled; the others are answers of tools."""
    tool_seconds: float
    """Mean seconds of the calls of a turn."""
    delay_steps: int | None
    """Decode steps between two turns. None: a turn begins as soon as the tools have answered."""
    concurrency: int
    """Limit of live conversations of a node."""


@dataclass(frozen=True)
class Workload:
    """Amounts of data of a job."""

    prompts_per_step: int
    warm_start_rows: int
    """Rows of a step of the warm start; 0 without one."""
    pretraining_rows: int
    """Rows of pretraining in a step; 0 without."""
    evaluation_prompts: int | None
    """Limit of prompts of an evaluation. None: there is no evaluation, or no limit."""
    max_prompt_tokens: int
    """Longest prompt."""
    max_response_tokens: int
    """Longest response."""
    expected_prompt_tokens: float
    """Mean tokens of a prompt."""
    expected_response_tokens: float
    """Mean tokens of a response."""
    max_concurrent_sequences: int
    """Limit of sequences that one generation engine decodes at once."""
    updates_per_epoch: int
    """Optimizer steps in one pass over a step's batch."""
    expected_truncated: float | None = None
    """Share of responses that are cut off at the longest. None: unknown."""
    conversations: ConversationWorkload | None = None
    """Conversations that responses are. None: responses have one turn."""

    @property
    def other_rows(self) -> int:
        """Rows of the largest batch that does not come from a step's prompts; 0 without."""
        return max(self.warm_start_rows, self.pretraining_rows)

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


@dataclass(frozen=True)
class FixedStrategy:
    """Choices of a role that the manifest fixes."""

    tensor: int | None = None
    """Ranks over which each layer is cut. None: open; 1 if the plan does not choose."""
    pipeline: int | None = None
    """Stages over which the layers are distributed. None: as for `tensor`."""
    micro_batch_tokens: int | None = None
    """Limit of padded tokens in a micro-batch. None: open."""
    recompute: bool | None = None
    """True if activations are computed again in the backward pass. None: open."""
    offload: Offload = Offload.AUTO
    """Offloading while others work on its devices; Auto: open."""

    @property
    def num_ranks(self) -> int:
        """Devices for one copy of the model; an open factor counts as 1."""
        return (self.tensor or 1) * (self.pipeline or 1)


@dataclass(frozen=True)
class RoleSpec:
    """A role with a model, before it has devices."""

    role: str
    origin: str
    """The role whose source its weights come from: itself or another."""
    trained_as: str
    """The entry of models with its training settings, for messages."""
    head: ModelHead
    shape: DecoderShape
    """Dimensions of its model."""
    precision: Precision
    """Number format of its computation: float32 or bfloat16, never Auto."""
    engine: TrainingEngineType
    """The engine that trains it, or runs it forward."""
    is_trained: bool
    """True if a call of some graph trains it."""
    generates: bool
    """True if a call of some graph generates with it."""
    is_saved: bool
    """True if checkpoints hold its state."""
    rows_per_prompt: int
    """Upper bound of its rows per prompt in one call of a step."""
    rows_together: int
    """Rows of a prompt that must be on one rank: all if its loss compares them, else one."""
    sequence_parallel: bool
    """True if Megatron's tensor ranks share the tokens in layers that are not cut."""
    distributed_optimizer: bool
    """True if Megatron's replicas share master weights and moments."""
    fixed: FixedStrategy
    """Choices that the manifest fixes."""
    reads_kept_tokens: bool = False
    """True if it computes log-probabilities of truncated sampling."""

    @property
    def num_parameters(self) -> int:
        """Parameters, exactly."""
        return self.shape.parameters_with(self.head)

    @property
    def uses_megatron(self) -> bool:
        """True if Megatron trains it, or runs it forward."""
        return self.engine is TrainingEngineType.MEGATRON


@dataclass(frozen=True)
class Constraints:
    """Choices of the job that the manifest fixes."""

    placement: PlacementSpec
    """The placement fixed by the manifest, if any."""
    engine_tensor: int | None = None
    """Ranks of a generation engine, unless placement fixes them. None: open."""
    kv_cache_bytes: int | None = None
    """Cache of generation on each device. None: open."""
    kv_cache_memory: str | None = None
    """The cache as the manifest writes it, for messages."""
    standby: bool | None = None
    """True if libraries stay in memory for the next start. None: if they fit."""
    saves_while_training: bool = False
    """True if a copy of the state is written while steps run."""
    stage_fusion: StageFusionType = StageFusionType.AUTO
    """Setting for calls that begin before the last response of a step has ended."""
    stage_fusion_threshold: int | None = None
    """Limit of responses that are unfinished then. None: open."""


@dataclass(frozen=True)
class PlanningProblem:
    """Everything that a plan depends on."""

    name: str
    """Name of the job."""
    graphs: Graphs
    """The graphs of the job."""
    models: Mapping[str, RoleSpec]
    """Every role with a model, in the order of the algorithm."""
    pools: tuple[Pool, ...]
    """The devices that it may use, all of one kind."""
    workload: Workload
    """Amounts of data."""
    fixed: Constraints
    """Choices that the manifest fixes."""
    profile: Profile | None = None
    """Times measured on such devices. None: times come from data sheets."""

    @property
    def device(self) -> Device:
        """Device of the ranks."""
        return device_of(self.pools)

    def pool(self, name: str) -> Pool:
        """The pool of a name."""
        return next(pool for pool in self.pools if pool.name == name)

    @cached_property
    def policy(self) -> str:
        """The role whose model the job trains."""
        return policy_role(self.graphs[GraphName.STEP])
