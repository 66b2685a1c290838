"""Plan: placement of all calls, and the memory arithmetic behind it.

The planner (rlhf_planner) makes it, the runtime executes it, the CLI and the operator show it. It
holds only decisions and derived values, never what the manifest already says.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import dropwhile, takewhile
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlhf_api.base import Contract, Count, Identifier, Name, PositiveFloat, Text
from rlhf_api.calls import EFFECTS, TRANSITIONS, CallId, CallKind, Phase
from rlhf_api.mesh import Mesh, union_ranks
from rlhf_api.plan_estimate import PlanSearch, StepEstimate
from rlhf_api.plan_fusion import StageFusion
from rlhf_api.plan_memory import ENGINE_MEMORY, Bytes, MemoryPlan
from rlhf_api.plan_versions import upgrade_from_version_2
from rlhf_api.spec.hardware import HardwareSpec
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device

# A field of a batch.
Column = Identifier


class ModelHead(StrEnum):
    """Kind of the last layer of a role's model."""

    LM = "LM"
    """Logits over the vocabulary: log-probabilities and generation."""
    SCALAR = "Scalar"
    """One number for each token, such as a value."""


class OffloadDepth(StrEnum):
    """Part of a role's state that is off its devices while other roles use them."""

    NOTHING = "Nothing"
    """Nothing is offloaded."""
    DERIVED = "Derived"
    """Weights that are recomputed from master weights. Master weights and optimizer state stay on
    the device; nothing is copied."""
    EVERYTHING = "Everything"
    """Weights, gradients and optimizer state; the host keeps a copy."""


class GraphName(StrEnum):
    """The graphs of a job."""

    WARM_START = "WarmStart"
    """A supervised step before reinforcement learning."""
    STEP = "Step"
    """A step of the algorithm."""
    EVALUATION = "Evaluation"
    """Generation and scoring on evaluation prompts."""


class Pool(Contract):
    """Equal devices with one process each. For the planner those available, in a plan those in
    use."""

    name: Name
    """Its name."""
    device: Device
    """Kind of device."""
    nodes: Count
    """Number of nodes."""
    devices_per_node: Count
    """Number of devices on each node."""
    memory_bytes_per_device: Bytes
    """Memory of one device available to the plan."""
    gpu: Text | None = None
    """GPU model from the manifest. None: unknown, or a CPU."""
    hardware: HardwareSpec | None = None
    """Performance of the devices, from the manifest. None: not stated."""

    @property
    def num_devices(self) -> int:
        """Number of devices, and so of ranks, in the pool."""
        return self.nodes * self.devices_per_node


class RolePlan(Contract):
    """A role and the planner's facts about its model."""

    role: Identifier
    """Its name."""
    head: ModelHead | None = None
    """Kind of the model's last layer. None without a model."""
    is_trained: bool = False
    """True if a call of some graph trains it."""
    generates: bool = False
    """True if a call of some graph generates with it."""
    origin: Identifier | None = None
    """The role whose source provides its weights: itself or another role. None without a model."""
    mesh: Mesh | None = None
    """Ranks with its model, for training and forward passes. None without a model."""
    engine: TrainingEngineType | None = None
    """Engine that trains its model or runs it forward. None without a model."""
    num_parameters: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Exact number of parameters; 0 without a model."""
    precision: Precision | None = None
    """Number format of its computation: float32 or bfloat16, never Auto. None without a model."""
    micro_batch_tokens: Count | None = None
    """Padded tokens that a rank processes at once. None without a model."""
    recomputes: bool = False
    """True if activations are recomputed in the backward pass."""
    is_saved: bool = False
    """True if checkpoints contain its state: the role is trained, copies another role's weights in
    a step, or copied the policy's after a warm start. Other weights can be loaded from their
    source."""
    offload: OffloadDepth = OffloadDepth.NOTHING
    """State that is off its devices while other roles use them: Nothing, Derived or Everything."""


class CallPlan(Contract):
    """Placement of one call of a graph."""

    graph: GraphName
    """The call's graph."""
    call: CallId
    """The call site, unique in its graph."""
    role: Identifier | None
    """The role that is called. None: a computation without a model."""
    method: Identifier
    """Name of the primitive."""
    kind: CallKind
    """Kind of the call."""
    mesh: Mesh | None
    """Ranks that run the call. None: it runs on the host of verifiers or in the driver."""
    source_mesh: Mesh | None = None
    """For a Reshard: training ranks of the role, which send the weights. They run the call together
    with those of mesh."""
    reads: Annotated[tuple[Column, ...], Field(max_length=64)]
    """Fields it reads, sorted."""
    writes: Annotated[tuple[Column, ...], Field(max_length=64)]
    """Fields it writes, sorted."""
    mini_batches: Count = 1
    """For a training call: number of mini-batches, one for each optimizer step, whatever the number
    of rows."""
    expected_count: PositiveFloat = 1.0
    """Mean number of runs in a pass of its graph."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that run the call, ascending; empty without a mesh."""
        if self.mesh is None:
            return ()
        return union_ranks(self.mesh, self.source_mesh or self.mesh)

    @property
    def off_rank_process(self) -> str:
        """The process that runs a call without a mesh: `host` (of verifiers) or `driver`."""
        return "driver" if self.kind is CallKind.SAVE else "host"

    @property
    def effect(self) -> str:
        """The effect of a call that writes no field, such as weights."""
        return EFFECTS.get(self.kind, "weights")


class GraphInputs(Contract):
    """Data that a pass of a graph reads."""

    prompts: Annotated[tuple[Column, ...], Field(max_length=64)]
    """Fields of data.train, or of data.evaluation, that it reads; sorted."""
    pretraining: Annotated[tuple[Column, ...], Field(max_length=64)] = ()
    """Fields of data.pretraining that it reads, sorted; may be empty."""
    prompt_batches: Count = 1
    """Largest number of prompt batches in a pass: above one if flow.repeat can ask for more."""


class GenerationPlan(Contract):
    """The generation engines of a role."""

    role: Identifier
    """The role with the weights."""
    mesh: Mesh
    """Ranks of the engines; each replica of the mesh is one engine."""
    kv_cache_bytes: Annotated[int, Field(ge=1, le=2**63 - 1)]
    """Size of the cache of keys and values on each device."""
    max_concurrent_sequences: Count
    """Largest number of sequences that one engine decodes at once."""
    max_sequence_tokens: Count
    """Longest prompt plus longest response, in tokens."""
    release_during_training: bool
    """True if generation weights and cache are freed while no call generates."""
    packs_weights: bool = False
    """True if engines compute with packed copies of their weights, which are faster on CPUs."""
    kv_block_tokens: Count
    """Tokens of a block of the key-value cache."""
    max_samples_per_prompt: Count
    """Largest number of responses to one prompt in any call of the role."""
    fusion: StageFusion | None = None
    """Calls that begin before the last response of a step has ended. None: all calls wait."""


class Plan(Contract):
    """All planning decisions of a job."""

    version: Literal[3] = 3
    """Version of this format. Plans of version 2 can be read; others are refused."""
    job: Name
    """The job's name."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=16)]
    """Device pools; each is one world of ranks."""
    roles: Annotated[tuple[RolePlan, ...], Field(min_length=1, max_length=16)]
    """Roles of all graphs."""
    calls: Annotated[tuple[CallPlan, ...], Field(min_length=1, max_length=512)]
    """Every call of every graph, in program order."""
    inputs: dict[GraphName, GraphInputs]
    """Data that each graph reads."""
    policy: Identifier
    """The role whose model the job exports. A warm start trains it, and it answers evaluation
    prompts."""
    generations: Annotated[tuple[GenerationPlan, ...], Field(max_length=16)]
    """Generation engines, one entry for each role that generates."""
    memory: Annotated[tuple[MemoryPlan, ...], Field(min_length=1, max_length=64)]
    """Memory of a device, one entry for each group of devices with the same roles."""
    passes_ahead: Annotated[int, Field(ge=0, le=16)]
    """Number of passes that the driver sends in advance, while an earlier pass runs."""
    standby: bool
    """True if each node keeps a process with the workers' libraries loaded, for fast restarts."""
    reasons: Annotated[tuple[Text, ...], Field(max_length=128)]
    """Reasons, one sentence for each decision."""
    estimate: StepEstimate | None = None
    """Expected times. None: unknown; a reason says why."""
    search: PlanSearch | None = None
    """Record of the search. None: the plan is the first that fits, without a comparison."""

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, data: Any) -> Any:
        is_old = isinstance(data, dict) and data.get("version") == 2
        return upgrade_from_version_2(data) if is_old else data

    @model_validator(mode="after")
    def _check_calls_and_meshes(self) -> Plan:
        # Each of these would be a fault of the planner, or a plan that was edited by hand.
        sites = [(call.graph, call.call) for call in self.calls]
        if len(set(sites)) != len(sites):
            raise ValueError("the same call site twice in one graph: plan the job again")
        sizes = {pool.name: pool.num_devices for pool in self.pools}
        if len(sizes) != len(self.pools):
            raise ValueError("two pools of one name: plan the job again")
        for name, mesh in self._meshes():
            if mesh.ranks.stop > sizes.get(mesh.pool, 0):
                raise ValueError(f"{name} does not lie in its pool: plan the job again")
        return self

    def _meshes(self) -> list[tuple[str, Mesh]]:
        calls = [(call.call, mesh) for call in self.calls for mesh in (call.mesh, call.source_mesh)]
        engines = [(f"generation of {plan.role}", plan.mesh) for plan in self.generations]
        roles = [(role.role, role.mesh) for role in self.roles]
        return [(name, mesh) for name, mesh in (*calls, *roles, *engines) if mesh is not None]

    @property
    def num_devices(self) -> int:
        """Number of devices of all pools, and so of ranks of the job."""
        return sum(pool.num_devices for pool in self.pools)

    @property
    def device(self) -> Device:
        """Kind of device; the same in all pools."""
        return self.pools[0].device

    @property
    def policy_pool(self) -> Pool:
        """The pool of the policy's ranks."""
        planned = self.role(self.policy)
        assert planned is not None and planned.mesh is not None
        return self.pool(planned.mesh.pool)

    @property
    def fullest(self) -> MemoryPlan:
        """The device group with the largest share of its memory in use at the peak."""
        return max(self.memory, key=lambda group: group.peak_bytes / max(1, group.capacity_bytes))

    def pool(self, name: str) -> Pool:
        """The pool with this name, which must exist."""
        return next(pool for pool in self.pools if pool.name == name)

    def rank_offset(self, name: str) -> int:
        """Number of ranks in all earlier pools: the job-wide number of a pool's first rank."""
        index = [pool.name for pool in self.pools].index(name)
        return sum(pool.num_devices for pool in self.pools[:index])

    def device_memory(self, pool: str, rank: int) -> MemoryPlan:
        """Memory of a rank's device; the rank is numbered within its pool."""
        return next(group for group in self.memory if group.pool == pool and rank in group.ranks)

    def engine_bytes(self, role: str) -> int:
        """Memory budget of a role's generation engine on each of its devices."""
        generation = self.generation(role)
        assert generation is not None
        memory = self.device_memory(generation.mesh.pool, generation.mesh.ranks.start)
        # An engine's memory is what its role uses in its own Generate phase.
        generates = Phase(role=role, kind=CallKind.GENERATE)
        return sum(
            item.bytes
            for item in memory.items
            if item.role == role and item.what in ENGINE_MEMORY and generates in item.phases
        )

    def roles_in(self, pool: str) -> tuple[str, ...]:
        """Roles with a model on ranks of a pool."""
        return tuple(role.role for role in self.roles if role.mesh and role.mesh.pool == pool)

    def call(self, graph: GraphName, call: str) -> CallPlan | None:
        """The plan of a call site; None if it is not in the plan."""
        return next(
            (plan for plan in self.calls if plan.graph is graph and plan.call == call), None
        )

    def transitions(self, graph: GraphName, call: str) -> tuple[list[CallPlan], list[CallPlan]]:
        """Calls that the plan inserts right before and right after a call of a step.

        Returns:
            The calls before it, and the calls after it. Between two calls of a step, leading
            Finish, Release and Offload calls belong to the first one, the rest to the second.
        """
        calls = [plan for plan in self.calls if plan.graph is graph]
        index = next(index for index, plan in enumerate(calls) if plan.call == call)
        before = list(takewhile(_is_transition, reversed(calls[:index])))[::-1]
        after = takewhile(_is_transition, calls[index + 1 :])
        return list(dropwhile(_completes_call, before)), list(takewhile(_completes_call, after))

    def generation(self, role: str) -> GenerationPlan | None:
        """Generation engines of a role; None if it does not generate."""
        return next((plan for plan in self.generations if plan.role == role), None)

    def role(self, name: str) -> RolePlan | None:
        """The plan of a role; None if it is not in the plan."""
        return next((role for role in self.roles if role.role == name), None)


def _is_transition(call: CallPlan) -> bool:
    return call.kind in TRANSITIONS


def _completes_call(call: CallPlan) -> bool:
    return call.kind in (CallKind.FINISH, CallKind.RELEASE, CallKind.OFFLOAD)
