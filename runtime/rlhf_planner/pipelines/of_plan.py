"""The saving if the training pipelines of two roles of a plan were interleaved. Pure.

Two roles that Megatron trains in stages on the same ranks, and that do not wait for each other, are
each idle while their pipeline fills and drains. In opposite directions one can work in the other's
bubbles (fuse.py). Nothing executes such a schedule yet: plans only report it.

Pipelines are idle at the first and last micro-batches only, so a schedule of at most 16 of each
represents all of them, and its saving occurs in every update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Plan
from rlhf_api.plan_estimate import PipelineFusion
from rlhf_api.spec.models import TrainingEngineType
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.batches import call_batch
from rlhf_planner.cost.calls import models_of_plan
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.measured_layers import layers_of
from rlhf_planner.cost.megatron import stage_passes
from rlhf_planner.cost.micro_batches import replica_micro_batches
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.megatron import micro_batch_bytes
from rlhf_planner.pipelines.fuse import fuse_pipelines
from rlhf_planner.pipelines.pipeline import Pipeline, opposite_pipelines
from rlhf_planner.pipelines.schedule import schedule_alone
from rlhf_planner.placement.transitions import region_of
from rlhf_planner.problem.problem import PlanningProblem

MAX_MICRO_BATCHES = 16
"""Limit of micro-batches of each role in the schedule."""
ITERATIONS = 500
"""Moves of the annealing: a fraction of a second."""


@dataclass(frozen=True)
class _Training:
    """A call that trains a role in stages."""

    call: str
    model: RoleModel
    pipeline: Pipeline
    """The pipeline of one replica, with all of its micro-batches."""
    updates: int
    """Optimizer steps of the call."""

    @property
    def shown(self) -> Pipeline:
        """The pipeline with a limited number of micro-batches."""
        return _with_micro_batches(self.pipeline, MAX_MICRO_BATCHES)


def pipeline_fusions(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware]
) -> tuple[PipelineFusion, ...]:
    """The saving of each pair of calls that could be interleaved.

    Args:
        problem: the planning problem.
        plan: its plan.
        hardware: of the devices of each pool.
    """
    graph = problem.graphs[GraphName.STEP]
    trainings = list(_trainings(problem, plan, hardware))
    return tuple(
        _fusion(one, other)
        for one, other in combinations(trainings, 2)
        if _share_stages(one.model, other.model) and _are_independent(graph, one.call, other.call)
    )


def _trainings(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware]
) -> Iterator[_Training]:
    models = models_of_plan(problem, plan)
    for call in problem.graphs[GraphName.STEP].calls_of_kind(CallKind.TRAIN):
        model = models[str(call.role)]
        is_cut = model.engine is TrainingEngineType.MEGATRON and model.mesh.pipeline > 1
        if is_cut and not region_of(call):
            pool = plan.pool(model.mesh.pool)
            links = Links(hardware[pool.name], pool.devices_per_node)
            yield _training(problem, plan, call, model, links)


def _training(
    problem: PlanningProblem, plan: Plan, call: ModelCall, model: RoleModel, links: Links
) -> _Training:
    assert isinstance(call.options, TrainOptions)
    planned = plan.call(GraphName.STEP, call.id)
    assert planned is not None
    parts = planned.mini_batches
    part = replica_micro_batches(call_batch(problem, call), model, parts)
    layers = layers_of(links.hardware, model.shape, model.precision)
    passes = stage_passes(model, part, layers, links)
    stages = range(model.mesh.pipeline)
    pipeline = Pipeline(
        name=model.role,
        devices=tuple(stages),
        forward_seconds=tuple(pass_.forward for pass_ in passes),
        backward_seconds=tuple(pass_.backward for pass_ in passes),
        activation_bytes=(micro_batch_bytes(model),) * len(stages),
        micro_batches=part.number,
    )
    return _Training(call.id, model, pipeline, parts * call.options.loss.updates(1))


def _share_stages(one: RoleModel, other: RoleModel) -> bool:
    """True if stages of both are on the same devices, with equal tensor groups."""
    meshes = one.mesh, other.mesh
    same = {(mesh.pool, mesh.ranks, mesh.tensor, mesh.tensor_stride) for mesh in meshes}
    return one.role != other.role and len(same) == 1


def _are_independent(graph: Graph, one: str, other: str) -> bool:
    return one not in _ancestors(graph, other) and other not in _ancestors(graph, one)


def _ancestors(graph: Graph, call: str) -> set[str]:
    ancestors, waiting = set[str](), [call]
    while waiting:
        fresh = graph.predecessors(waiting.pop()) - ancestors
        ancestors |= fresh
        waiting += sorted(fresh)
    return ancestors


def _fusion(one: _Training, other: _Training) -> PipelineFusion:
    fused = fuse_pipelines(
        opposite_pipelines(one.shown, other.shown), seed=0, iterations=ITERATIONS
    )
    alone = [schedule_alone(training.pipeline) for training in (one, other)]
    work = [sum(schedule.workload.seconds) / schedule.workload.num_devices for schedule in alone]
    updates = min(one.updates, other.updates)
    makespans = [schedule.makespan_seconds for schedule in alone]
    both = zip((one, other), makespans, strict=True)
    serial = sum(training.updates * seconds for training, seconds in both)
    busy = one.updates * work[0] + other.updates * work[1]
    saved = updates * (fused.serial_seconds - fused.schedule.makespan_seconds)
    max_saving = updates * (fused.serial_seconds - fused.lower_bound_seconds)
    return PipelineFusion(
        calls=(one.call, other.call),
        serial_seconds=serial,
        fused_seconds=serial - saved,
        bound_seconds=max(0.0, serial - max_saving),
        bubble_share=max(0.0, 1 - busy / (serial - saved)),
        serial_bubble_share=max(0.0, 1 - busy / serial),
        activation_bytes=max(fused.schedule.peak_bytes),
    )


def _with_micro_batches(pipeline: Pipeline, max_micro_batches: int) -> Pipeline:
    return Pipeline(
        pipeline.name,
        pipeline.devices,
        pipeline.forward_seconds,
        pipeline.backward_seconds,
        pipeline.activation_bytes,
        min(max_micro_batches, pipeline.micro_batches),
    )
