"""Estimate the time saved by interleaving the training pipelines of two roles of a plan. Pure.

The two roles are trained by Megatron in stages on the same ranks, and neither call waits for the
other. Each pipeline idles while it fills and drains; in opposite directions one can work in the
other's bubbles (`rlhf_planner.pipelines.fuse`). Nothing executes such a schedule: the estimate is
only reported in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Plan
from rlhf_api.plan_estimate import PipelineFusion
from rlhf_api.spec.models import TrainingEngineType
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.batches import call_batch
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.measured_layers import layers_of
from rlhf_planner.cost.megatron import stage_seconds
from rlhf_planner.cost.micro_batches import replica_micro_batches
from rlhf_planner.cost.plan import models_of_plan
from rlhf_planner.memory.megatron import micro_batch_bytes
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.pipelines.fuse import fuse_pipelines
from rlhf_planner.pipelines.pipeline import Pipeline, opposite_pipelines
from rlhf_planner.pipelines.schedule import schedule_alone
from rlhf_planner.placement.transitions import region_of
from rlhf_planner.problem.problem import PlanningProblem

# Pipelines idle only during the first and last micro-batches, so a schedule of a few of them shows
# the seconds that every update saves.
MAX_MICRO_BATCHES = 16
"""Micro-batches of each role in the fused schedule."""
ITERATIONS = 500
"""Annealing moves per pair of calls; takes a fraction of a second."""


@dataclass(frozen=True)
class _TrainCall:
    """A call that trains a role in stages."""

    call: str
    model: RoleModel
    pipeline: Pipeline
    """Pipeline of one replica, with all of its micro-batches."""
    updates: int
    """Optimizer steps of the call."""

    @property
    def shortened(self) -> Pipeline:
        """The pipeline with at most `MAX_MICRO_BATCHES`."""
        return replace(
            self.pipeline, micro_batches=min(MAX_MICRO_BATCHES, self.pipeline.micro_batches)
        )


def pipeline_fusions(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware]
) -> tuple[PipelineFusion, ...]:
    """Estimate the fusion of every pair of train calls that could be interleaved.

    Args:
        problem: the planning problem.
        plan: a plan of this problem.
        hardware: hardware of the devices, by pool name.
    """
    graph = problem.graphs[GraphName.STEP]
    calls = list(_train_calls(problem, plan, hardware))
    return tuple(
        _estimate_fusion(one, other)
        for one, other in combinations(calls, 2)
        if _share_stages(one.model, other.model) and _are_independent(graph, one.call, other.call)
    )


def _train_calls(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware]
) -> Iterator[_TrainCall]:
    models = models_of_plan(problem, plan)
    for call in problem.graphs[GraphName.STEP].calls_of_kind(CallKind.TRAIN):
        model = models[str(call.role)]
        is_cut = model.engine is TrainingEngineType.MEGATRON and model.mesh.pipeline > 1
        if is_cut and not region_of(call):
            pool = plan.pool(model.mesh.pool)
            links = Links(hardware[pool.name], pool.devices_per_node)
            yield _train_call(problem, plan, call, model, links)


def _train_call(
    problem: PlanningProblem, plan: Plan, call: ModelCall, model: RoleModel, links: Links
) -> _TrainCall:
    assert isinstance(call.options, TrainOptions)
    planned = plan.call(GraphName.STEP, call.id)
    assert planned is not None
    num_mini_batches = planned.mini_batches
    pipeline = train_pipeline(problem, call, model, links, num_mini_batches)
    return _TrainCall(call.id, model, pipeline, num_mini_batches * call.options.loss.updates(1))


def train_pipeline(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    links: Links,
    num_mini_batches: int,
) -> Pipeline:
    """The pipeline of a replica, with all micro-batches of an update.

    Args:
        problem: the planning problem.
        call: of its step; trains `model`.
        model: the role, trained by Megatron.
        links: of its pool.
        num_mini_batches: parts of the call's batch.
    """
    micro_batches = replica_micro_batches(call_batch(problem, call), model, num_mini_batches)
    layers = layers_of(links.hardware, model.shape, model.precision)
    passes = stage_seconds(model, micro_batches, layers, links)
    stages = range(model.mesh.pipeline)
    # Stages stand for the devices: all tensor ranks and replicas of a stage do the same.
    return Pipeline(
        name=model.role,
        devices=tuple(stages),
        forward_seconds=tuple(pass_.forward for pass_ in passes),
        backward_seconds=tuple(pass_.backward for pass_ in passes),
        activation_bytes=(micro_batch_bytes(model),) * len(stages),
        micro_batches=micro_batches.number,
    )


def _share_stages(one: RoleModel, other: RoleModel) -> bool:
    """True if both roles have their stages on the same devices."""
    # Equal tensor ranks form one device of the schedule; unequal ones would overlap in part.
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


def _estimate_fusion(one: _TrainCall, other: _TrainCall) -> PipelineFusion:
    fused = fuse_pipelines(
        opposite_pipelines(one.shortened, other.shortened), seed=0, iterations=ITERATIONS
    )
    alone = [schedule_alone(train.pipeline) for train in (one, other)]
    work = [sum(schedule.workload.seconds) / schedule.workload.num_devices for schedule in alone]
    serial = sum(
        train.updates * schedule.makespan_seconds
        for train, schedule in zip((one, other), alone, strict=True)
    )
    busy = one.updates * work[0] + other.updates * work[1]
    # Only updates that both calls make can be interleaved.
    updates = min(one.updates, other.updates)
    saved = updates * (fused.serial_seconds - fused.schedule.makespan_seconds)
    max_saved = updates * (fused.serial_seconds - fused.lower_bound_seconds)
    return PipelineFusion(
        calls=(one.call, other.call),
        serial_seconds=serial,
        fused_seconds=serial - saved,
        bound_seconds=max(0.0, serial - max_saved),
        bubble_share=max(0.0, 1 - busy / (serial - saved)),
        serial_bubble_share=max(0.0, 1 - busy / serial),
        activation_bytes=max(fused.schedule.peak_bytes),
    )
