"""Training of actor and critic with every parallelism that fits, and the fastest of each method.

Memory holds the job of `papers_job`: both trained roles, and an equal share of the two frozen ones
on every GPU. Generation has released its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from papers_job import GPU_BYTES, GPUS_PER_NODE, Batch, paper_hardware, paper_problem

from rlhf_api.calls import IDLE, CallKind, call_phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_api.plan_memory import MemoryUse
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.batches import mini_batches
from rlhf_planner.cost.calls import train_call_seconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.memory.megatron import micro_batch_bytes
from rlhf_planner.memory.role_model import RoleModel, process_items
from rlhf_planner.memory.roles import role_items, role_model
from rlhf_planner.pipelines.fuse import fuse_pipelines
from rlhf_planner.pipelines.pipeline import Pipeline, opposite_pipelines
from rlhf_planner.pipelines.plan_fusions import train_pipeline
from rlhf_planner.pipelines.schedule import serial_seconds
from rlhf_planner.placement.strategy import RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem

ROLES = ("actor", "critic")
TENSORS = (1, 2, 4, 8)
SEQUENCES = (1, 2, 4, 8)
"""Sequences in a micro-batch."""
MIN_MICRO_BATCHES = 16
"""Micro-batches that a fused schedule has if there are as many. Pipelines idle at both ends only,
so more of them, beyond two for each stage, save no more seconds."""
ITERATIONS = 300
"""Annealing moves of a fused schedule."""
STATES = (MemoryUse.WEIGHTS, MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER)


@dataclass(frozen=True)
class Training:
    """Training of a role in a step, with one parallelism."""

    model: RoleModel
    pipeline: Pipeline
    """Passes of a replica in an update."""
    updates: int
    chunks: int
    """Parts of the layers that a stage has; 1: stages are not interleaved."""
    call: CallSeconds
    """Seconds of all updates with one chunk."""

    @cached_property
    def bytes_by_use(self) -> dict[MemoryUse, int]:
        """Bytes on the fullest GPU, under 1F1B with one chunk."""
        items = role_items(self.model, (call_phase(self.model.role, CallKind.TRAIN),))
        return {item.what: item.bytes for item in items}

    @property
    def busy_seconds(self) -> float:
        """Seconds if the pipeline never idled."""
        # Every chunk sends its outputs.
        messages = (self.chunks - 1) * self.call.stage_communication
        return self.call.total - self.call.bubble + messages

    @cached_property
    def seconds(self) -> float:
        """Seconds of all updates."""
        return self.busy_seconds + self.call.bubble / self.chunks

    @cached_property
    def state_bytes(self) -> int:
        """Bytes that remain while the other role is trained."""
        return sum(self.bytes_by_use.get(use, 0) for use in STATES)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that remain while passes of another role run: states and gradients."""
        return self.state_bytes + self.bytes_by_use[MemoryUse.GRADIENTS]

    @property
    def working_bytes(self) -> int:
        """Bytes of one pass, without what micro-batches in flight keep."""
        in_flight = min(self.pipeline.num_stages, self.pipeline.micro_batches)
        kept = in_flight * micro_batch_bytes(self.model)
        return sum(self.bytes_by_use.values()) - self.fixed_bytes - kept

    @cached_property
    def total_bytes(self) -> int:
        """All bytes."""
        # The first stage keeps so many chunks at most.
        stages, chunks = self.pipeline.num_stages, self.chunks
        in_flight = 2 * (stages - 1) + (chunks - 1) * stages + 1 if chunks > 1 else stages
        in_flight = min(in_flight, chunks * self.pipeline.micro_batches)
        kept = in_flight * micro_batch_bytes(self.model) // chunks
        return self.fixed_bytes + self.working_bytes + kept


class Choice(NamedTuple):
    """The fastest parallelism of both roles."""

    seconds: float
    trainings: tuple[Training, Training]

    @property
    def text(self) -> str:
        """Stages-tensor-replicas of actor and critic, once if they are equal."""
        meshes = [training.model.mesh for training in self.trainings]
        texts = [f"{mesh.pipeline}-{mesh.tensor}-{mesh.data}" for mesh in meshes]
        return " ".join(dict.fromkeys(texts))


class Comparison(NamedTuple):
    """The fastest training of both roles by method; None: nothing fits."""

    in_turn: Choice | None
    on_halves: Choice | None
    fused: Choice | None
    interleaved: Choice | None
    """The better of in turn and on halves, with stages of one or two chunks of layers."""
    bound: float | None
    """Seconds of the fastest in turn, on halves or fused if pipelines never idled."""

    @property
    def offered(self) -> float | None:
        """Seconds of the better of the methods that the runtime has."""
        choices = [
            choice.seconds for choice in (self.in_turn, self.on_halves) if choice is not None
        ]
        return min(choices, default=None)


def compare(model: str, num_gpus: int, batch: Batch) -> Comparison:
    """Compare methods to train both roles of the papers' job.

    Args:
        model: one of `papers_job.MODELS`.
        num_gpus: a multiple of a node's.
        batch: of a step.
    """
    problem = paper_problem(model, num_gpus, batch)
    limit = _capacity(problem, num_gpus)
    pairs = list(product(*(list(trainings(problem, role, num_gpus)) for role in ROLES)))
    in_turn = [
        Choice(one.seconds + other.seconds, (one, other))
        for one, other in pairs
        if max(one.total_bytes + other.state_bytes, other.total_bytes + one.state_bytes) <= limit
    ]
    halved = [
        Choice(max(one.seconds, other.seconds), (one, other))
        for one, other in product(
            *(list(trainings(problem, role, num_gpus // 2)) for role in ROLES)
        )
        if max(one.total_bytes, other.total_bytes) <= limit
    ]
    fusable = _fusable(pairs, limit)
    bounds = [
        *(sum(own.busy_seconds for own in choice.trainings) for choice in in_turn),
        *(max(own.busy_seconds for own in choice.trainings) for choice in halved),
        *(candidate.busy_seconds for candidate in fusable),
    ]
    return Comparison(
        _fastest(_with_one_chunk(in_turn)),
        _fastest(_with_one_chunk(halved)),
        _fastest_fused(fusable),
        _fastest([*in_turn, *halved]),
        min(bounds, default=None),
    )


def _with_one_chunk(choices: Iterable[Choice]) -> Iterator[Choice]:
    return (choice for choice in choices if all(own.chunks == 1 for own in choice.trainings))


def _fastest(choices: Iterable[Choice]) -> Choice | None:
    return min(choices, key=lambda choice: choice.seconds, default=None)


def _capacity(problem: PlanningProblem, num_gpus: int) -> int:
    """Bytes of a GPU for both trained roles."""
    process = sum(item.bytes for item in process_items(Device.GPU, GPU_BYTES, (IDLE,)))
    frozen = [facts.shape for facts in problem.models.values() if not facts.is_trained]
    return GPU_BYTES - process - sum(2 * shape.num_parameters for shape in frozen) // num_gpus


def trainings(problem: PlanningProblem, role: str, num_gpus: int) -> Iterator[Training]:
    """A role's training on a number of GPUs, with every parallelism."""
    links = Links(paper_hardware(), GPUS_PER_NODE)
    shape, longest = problem.models[role].shape, problem.workload.max_sequence_tokens
    calls = problem.graphs[GraphName.STEP].calls_of_kind(CallKind.TRAIN)
    (call,) = (call for call in calls if call.role == role)
    updates = mini_batches(problem, call)
    num_stages = [p for p in range(1, shape.num_layers + 1) if shape.num_layers % p == 0]
    for tensor, stages, sequences, recompute in product(
        TENSORS, num_stages, SEQUENCES, (False, True)
    ):
        if num_gpus % (tensor * stages):
            continue
        devices = Mesh(pool="pool", data=num_gpus)
        strategy = RoleStrategy(devices, tensor, stages, sequences * longest, recompute)
        model = role_model(problem, role, strategy)
        pipeline = train_pipeline(problem, call, model, links, updates)
        seconds = train_call_seconds(problem, call, model, links)
        yield Training(model, pipeline, updates, 1, seconds)
        # Megatron interleaves micro-batches in groups of as many as there are stages.
        can_interleave = shape.num_layers % (2 * stages) == 0 == pipeline.micro_batches % stages
        if stages > 1 and can_interleave:
            yield Training(model, pipeline, updates, 2, seconds)


class _Fusable(NamedTuple):
    """Trainings on the same stages, whose pipelines may be fused."""

    busy_seconds: float
    """Seconds if pipelines never idled."""
    activation_bytes: int
    """Limit on a GPU, for micro-batches in flight."""
    trainings: tuple[Training, Training]


def _fusable(pairs: Iterable[tuple[Training, Training]], limit: int) -> list[_Fusable]:
    fusable = []
    for one, other in pairs:
        if one.model.mesh != other.model.mesh or one.model.mesh.pipeline == 1:
            continue
        # A GPU runs one pass at a time.
        working = max(one.working_bytes, other.working_bytes)
        left = limit - one.fixed_bytes - other.fixed_bytes - working
        fits = left >= max(micro_batch_bytes(one.model), micro_batch_bytes(other.model))
        if fits and one.chunks == other.chunks == 1:
            busy_seconds = one.busy_seconds + other.busy_seconds
            fusable.append(_Fusable(busy_seconds, left, (one, other)))
    return fusable


def _fastest_fused(fusable: Iterable[_Fusable]) -> Choice | None:
    best: Choice | None = None
    for busy_seconds, activation_bytes, pair in sorted(fusable, key=lambda one: one.busy_seconds):
        if best is not None and busy_seconds >= best.seconds:
            break
        seconds = sum(own.seconds for own in pair) - _saved_seconds(pair, activation_bytes)
        if best is None or seconds < best.seconds:
            best = Choice(seconds, pair)
    return best


def _saved_seconds(pair: Sequence[Training], activation_bytes: int) -> float:
    """Seconds of a step that a fused schedule saves against 1F1B, one role after the other."""
    short = [
        replace(
            own.pipeline,
            micro_batches=min(
                own.pipeline.micro_batches, max(MIN_MICRO_BATCHES, 2 * own.pipeline.num_stages)
            ),
        )
        for own in pair
    ]
    fused = fuse_pipelines(opposite_pipelines(*short), activation_bytes, iterations=ITERATIONS)
    return pair[0].updates * (serial_seconds(short) - fused.schedule.makespan_seconds)
