"""Plan: what runs where, and the memory arithmetic behind it.

The planner (rlhf_planner) makes it; the runtime obeys it; the CLI and the operator show it.
It holds decisions and derived values only, never what the manifest already says.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import dropwhile, takewhile
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlhf_api.base import Contract, Count, Identifier, Name, PositiveFloat, Text
from rlhf_api.calls import EFFECTS, TRANSITIONS, CallId, CallKind, Phase
from rlhf_api.plan_estimate import PlanSearch, StepEstimate
from rlhf_api.plan_fusion import StageFusion
from rlhf_api.plan_memory import ENGINE_MEMORY, Bytes, MemoryPlan
from rlhf_api.plan_versions import upgraded_from_2
from rlhf_api.spec.hardware import HardwareSpec
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device

Column = Identifier
"""A field of a batch."""


class ModelHead(StrEnum):
    """What a role's language model ends in."""

    LM = "LM"
    """Scores over the vocabulary: it has log-probabilities and can generate."""
    SCALAR = "Scalar"
    """One number for each token, such as a value."""


class OffloadDepth(StrEnum):
    """How much of a role leaves its devices while others work there."""

    NOTHING = "Nothing"
    """It stays."""
    DERIVED = "Derived"
    """Weights that master weights give again; these stay, and so does the optimizer's state.
    Nothing is copied."""
    EVERYTHING = "Everything"
    """Weights, gradients and optimizer state: the host has a copy."""


class GraphName(StrEnum):
    """The graphs of a job."""

    WARM_START = "WarmStart"
    """A supervised step before reinforcement learning."""
    STEP = "Step"
    """A step of the algorithm."""
    EVALUATION = "Evaluation"
    """Held-out prompts, answered and scored."""


class Mesh(Contract):
    """Consecutive ranks of a pool, and how a call's work is cut over them.

    Along its axes tensor ranks are neighbours, then pipeline stages, then replicas. With a tensor
    stride so many replicas lie between each other: data 2, tensor 2 and a stride of 2 are the
    groups {0,2} and {1,3}.
    """

    pool: Name
    """The pool."""
    first_rank: Annotated[int, Field(ge=0)] = 0
    """Its first rank, as the pool numbers them."""
    data: Count
    """Replicas, or shards of the data under FSDP."""
    tensor: Count = 1
    """Ranks over which each layer is cut."""
    pipeline: Count = 1
    """Ranks over which the layers are distributed."""
    tensor_stride: Count = 1
    """How far apart the ranks of a tensor group are."""

    @model_validator(mode="after")
    def _strides_come_out_even(self) -> Mesh:
        if self.tensor_stride > 1 and (self.pipeline > 1 or self.data % self.tensor_stride):
            raise ValueError(
                f"a tensor stride of {self.tensor_stride} does not come out even: got data "
                f"{self.data} and pipeline {self.pipeline}, allowed a multiple of the stride and "
                "1; plan the job again"
            )
        return self

    @property
    def num_devices(self) -> int:
        """Devices in the mesh."""
        return self.data * self.tensor * self.pipeline

    @property
    def ranks(self) -> range:
        """Its ranks, as the pool numbers them."""
        return range(self.first_rank, self.first_rank + self.num_devices)

    def overlaps(self, other: Mesh) -> bool:
        """Whether they have a device in common."""
        end = min(self.ranks.stop, other.ranks.stop)
        return self.pool == other.pool and max(self.first_rank, other.first_rank) < end

    def rank_at(self, data: int, pipeline: int, tensor: int) -> int:
        """The rank at a place along the axes, as the pool numbers it."""
        block, offset = divmod(data, self.tensor_stride)
        inner = (block * self.pipeline + pipeline) * self.tensor + tensor
        return self.first_rank + inner * self.tensor_stride + offset

    def tensor_index(self, rank: int) -> int:
        """The place of a rank of the mesh, as the pool numbers it, in its tensor group."""
        return (rank - self.first_rank) % (self.tensor * self.tensor_stride) // self.tensor_stride

    @property
    def tensor_groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each tensor group, ascending: replica by replica, stage by stage."""
        return tuple(
            tuple(self.rank_at(data, pipeline, tensor) for tensor in range(self.tensor))
            for data in range(self.data)
            for pipeline in range(self.pipeline)
        )


def union_ranks(one: Mesh, other: Mesh) -> tuple[int, ...]:
    """The ranks of two meshes of a pool, ascending."""
    return tuple(sorted({*one.ranks, *other.ranks}))


class Pool(Contract):
    """Equal devices, with one process on each: those that may be planned for, or, in a plan, those
    that it takes."""

    name: Name
    """Its name."""
    device: Device
    """What ranks compute on."""
    nodes: Count
    """Nodes."""
    devices_per_node: Count
    """Devices on each node."""
    memory_bytes_per_device: Bytes
    """Memory of one device that the plan may use."""
    gpu: Text | None = None
    """The GPU's model, as the manifest names it. None: not known, or a CPU."""
    hardware: HardwareSpec | None = None
    """What the manifest says of what its devices can do. None: nothing."""

    @property
    def num_devices(self) -> int:
        """Devices, hence ranks, in the pool."""
        return self.nodes * self.devices_per_node


class RolePlan(Contract):
    """A role and what the planner found out about its model."""

    role: Identifier
    """Its name."""
    head: ModelHead | None = None
    """What its model ends in. None: it has no model."""
    is_trained: bool = False
    """Whether a call of some graph trains it."""
    generates: bool = False
    """Whether a call of some graph generates with it."""
    origin: Identifier | None = None
    """The role whose source its weights come from: itself or another. None without a model."""
    mesh: Mesh | None = None
    """The ranks that hold its model, for training and forward passes. None without a model."""
    engine: TrainingEngineType | None = None
    """What trains its model, or runs it forward. None without a model."""
    num_parameters: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Parameters, exactly; 0 without a model."""
    precision: Precision | None = None
    """Number format of its computation: float32 or bfloat16, never Auto. None without a model."""
    micro_batch_tokens: Count | None = None
    """Padded tokens that a rank runs through it at once. None without a model."""
    recomputes: bool = False
    """Whether activations are computed again for the backward pass."""
    is_saved: bool = False
    """Whether checkpoints hold its state: it is trained, takes over another role's weights in a
    step, or took the policy's after a warm start. All other weights can be had from their source.
    """
    offload: OffloadDepth = OffloadDepth.NOTHING
    """What leaves its devices while others work there: Nothing, Derived or Everything."""


class CallPlan(Contract):
    """Where and how a call of a graph runs."""

    graph: GraphName
    """The graph it belongs to."""
    call: CallId
    """The call site, unique in its graph."""
    role: Identifier | None
    """Whose call it is; None: nobody's, it computes without a model."""
    method: Identifier
    """The primitive."""
    kind: CallKind
    """What it does."""
    mesh: Mesh | None
    """The ranks that it runs on; None: beside them, on the host of verifiers or in the driver."""
    source_mesh: Mesh | None = None
    """Of a Reshard: the ranks that train the role, from which the weights come. They run it with
    those of the mesh."""
    reads: Annotated[tuple[Column, ...], Field(max_length=64)]
    """Fields it reads, sorted."""
    writes: Annotated[tuple[Column, ...], Field(max_length=64)]
    """Fields it writes, sorted."""
    mini_batches: Count = 1
    """Parts of its batch, each for an optimizer step, of a call that trains: as many for any number
    of rows."""
    expected_count: PositiveFloat = 1.0
    """How often it runs in a pass of its graph, on average."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that run it, ascending; none where it runs beside them."""
        if self.mesh is None:
            return ()
        return union_ranks(self.mesh, self.source_mesh or self.mesh)

    @property
    def off_rank_process(self) -> str:
        """Who runs it where no rank does: the host of verifiers, or the driver."""
        return "driver" if self.kind is CallKind.SAVE else "host"

    @property
    def effect(self) -> str:
        """What it changes, if it writes no field."""
        return EFFECTS.get(self.kind, "weights")


class GraphInputs(Contract):
    """What a pass of a graph is given."""

    prompts: Annotated[tuple[Column, ...], Field(max_length=64)]
    """Fields of data.train that it reads, or of data.evaluation, sorted."""
    pretraining: Annotated[tuple[Column, ...], Field(max_length=64)] = ()
    """Fields of data.pretraining that it reads, sorted; empty where it reads none."""
    prompt_batches: Count = 1
    """Batches of prompts that it takes at most: more than one where flow.repeat asks for more."""


class GenerationPlan(Contract):
    """The generation engines of a role."""

    role: Identifier
    """Whose weights they generate with."""
    mesh: Mesh
    """Their ranks: one engine for each of its replicas."""
    kv_cache_bytes: Annotated[int, Field(ge=1, le=2**63 - 1)]
    """Keys and values on each device."""
    max_concurrent_sequences: Count
    """Sequences that one engine decodes at once."""
    max_sequence_tokens: Count
    """Longest prompt plus longest response."""
    release_during_training: bool
    """Whether generation weights and cache are freed whenever no call generates."""
    kv_block_tokens: Count
    """Tokens of a block of the key-value cache."""
    max_samples_per_prompt: Count
    """Responses to one prompt, in the role's call that makes most."""
    fusion: StageFusion | None = None
    """Calls that begin before the last response of a step has ended. None: they wait for it."""


class Plan(Contract):
    """The decisions that a job runs by."""

    version: Literal[3] = 3
    """Version of this format. Plans of version 2 can be read; others are refused."""
    job: Name
    """The job's name."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=16)]
    """Device pools: each is one world of ranks."""
    roles: Annotated[tuple[RolePlan, ...], Field(min_length=1, max_length=16)]
    """Roles of all graphs."""
    calls: Annotated[tuple[CallPlan, ...], Field(min_length=1, max_length=512)]
    """Every call of every graph, in program order."""
    inputs: dict[GraphName, GraphInputs]
    """What each graph reads of the data."""
    policy: Identifier
    """The role whose model the job leaves, that a warm start trains and that answers held-out
    prompts."""
    generations: Annotated[tuple[GenerationPlan, ...], Field(max_length=16)]
    """The generation engines, of each role that generates."""
    memory: Annotated[tuple[MemoryPlan, ...], Field(min_length=1, max_length=64)]
    """Memory of a device, for each group of devices that hold the same roles."""
    passes_ahead: Annotated[int, Field(ge=0, le=16)]
    """Passes that the driver sends before the pass that runs has ended."""
    standby: bool
    """Whether the workers' libraries stay in each node's memory, to start workers again from."""
    reasons: Annotated[tuple[Text, ...], Field(max_length=128)]
    """Why it is so, one sentence for each decision."""
    estimate: StepEstimate | None = None
    """How long steps are expected to take. None: not known; a reason says why."""
    search: PlanSearch | None = None
    """How the plan was found. None: by the first way to compute that fits, without a comparison."""

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, data: Any) -> Any:
        is_old = isinstance(data, dict) and data.get("version") == 2
        return upgraded_from_2(data) if is_old else data

    @model_validator(mode="after")
    def _calls_are_unique_and_placed(self) -> Plan:
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
        """Every mesh, with what it is for."""
        calls = [(call.call, mesh) for call in self.calls for mesh in (call.mesh, call.source_mesh)]
        engines = [(f"generation of {each.role}", each.mesh) for each in self.generations]
        roles = [(role.role, role.mesh) for role in self.roles]
        return [(name, mesh) for name, mesh in (*calls, *roles, *engines) if mesh is not None]

    @property
    def num_devices(self) -> int:
        """Devices of all pools, hence ranks of the job."""
        return sum(pool.num_devices for pool in self.pools)

    @property
    def device(self) -> Device:
        """What ranks compute on: the same in all pools."""
        return self.pools[0].device

    @property
    def policy_pool(self) -> Pool:
        """The pool whose ranks hold the policy."""
        planned = self.role(self.policy)
        assert planned is not None and planned.mesh is not None
        return self.pool(planned.mesh.pool)

    @property
    def fullest(self) -> MemoryPlan:
        """The group of devices that comes closest to what its devices have."""
        return max(self.memory, key=lambda group: group.peak_bytes / max(1, group.capacity_bytes))

    def pool(self, name: str) -> Pool:
        """The pool of a name, which must be there."""
        return next(pool for pool in self.pools if pool.name == name)

    def rank_offset(self, pool: str) -> int:
        """The number of a pool's first rank among all of the job: pools come one after the
        other."""
        before = [each.name for each in self.pools].index(pool)
        return sum(each.num_devices for each in self.pools[:before])

    def device_memory(self, pool: str, rank: int) -> MemoryPlan:
        """Memory of the device of a rank, as its pool numbers them."""
        return next(each for each in self.memory if each.pool == pool and rank in each.ranks)

    def engine_bytes(self, role: str) -> int:
        """What the generation engine of a role may take on each of its devices."""
        generation = self.generation(role)
        assert generation is not None
        memory = self.device_memory(generation.mesh.pool, generation.mesh.ranks.start)
        generates = Phase(role=role, kind=CallKind.GENERATE)
        return sum(
            item.bytes
            for item in memory.items
            if item.role == role and item.what in ENGINE_MEMORY and generates in item.phases
        )

    def roles_in(self, pool: str) -> tuple[str, ...]:
        """Roles whose models live in a pool, or on some of its ranks."""
        return tuple(each.role for each in self.roles if each.mesh and each.mesh.pool == pool)

    def call(self, graph: GraphName, call: str) -> CallPlan | None:
        """The plan of a call site, or None where the plan does not have it."""
        return next((c for c in self.calls if c.graph is graph and c.call == call), None)

    def transitions(self, graph: GraphName, call: str) -> tuple[list[CallPlan], list[CallPlan]]:
        """What runs right before a call, and right after it, without the step's knowing.

        Between two calls of a step come first those that end the one and give its memory back, then
        those that make ready for the other, which begin by bringing something.
        """
        calls = [each for each in self.calls if each.graph is graph]
        at = next(number for number, each in enumerate(calls) if each.call == call)
        before = list(takewhile(_is_transition, reversed(calls[:at])))[::-1]
        after = takewhile(_is_transition, calls[at + 1 :])
        return list(dropwhile(_ends_a_call, before)), list(takewhile(_ends_a_call, after))

    def generation(self, role: str) -> GenerationPlan | None:
        """The generation engines of a role, or None where it does not generate."""
        return next((each for each in self.generations if each.role == role), None)

    def role(self, name: str) -> RolePlan | None:
        """The plan of a role, or None where the plan does not have it."""
        return next((role for role in self.roles if role.role == name), None)


def _is_transition(call: CallPlan) -> bool:
    return call.kind in TRANSITIONS


def _ends_a_call(call: CallPlan) -> bool:
    return call.kind in (CallKind.FINISH, CallKind.RELEASE, CallKind.OFFLOAD)
