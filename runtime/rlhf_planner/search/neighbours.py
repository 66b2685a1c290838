"""Neighbours of a plan: plans that differ from it in one choice of a call's role. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_flow.errors import PlanError
from rlhf_planner.cost.fusion import fusion_of
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import Estimate, evaluate
from rlhf_planner.feasibility import apply_placement, check_feasible
from rlhf_planner.memory.choices import MemoryChoice, forced_recompute, micro_batch_sizes
from rlhf_planner.memory.offloading import OffloadChoice, offload_choices
from rlhf_planner.overlap.choice import best_fusion
from rlhf_planner.placement.placement import CallPlacement, RolePlacement, device_groups
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.strategies.parallelism import cuts, engine_tensors, with_cut
from rlhf_planner.strategies.placements import Placement

# Calls on a role's engines.
GENERATION = (CallKind.GENERATE, CallKind.RESHARD, CallKind.RELEASE, CallKind.FINISH)


@dataclass(frozen=True)
class Neighbour:
    """A plan that differs in one choice."""

    name: str
    """The difference, for people."""
    call_seconds: float | None
    """Seconds of one run of the call. None: the plan has no such call, or is infeasible."""
    step_seconds: float | None
    """Step time. None: the plan is infeasible."""


def neighbours(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware], call: str
) -> tuple[Neighbour, ...]:
    """Plans that differ in one choice of a call's role, shortest step first; infeasible ones last.

    If stages of the plan overlap, each neighbour gets the overlap that is best for it.

    Args:
        plan: a plan of the problem.
        hardware: of the devices of each pool.
        call: the site of a call of the step that uses a model.
    """
    planned = plan.call(GraphName.STEP, call)
    assert planned is not None and planned.role is not None
    generates = planned.kind in GENERATION
    # Without a fusion of their own, neighbours would seem slower than a plan that has one.
    is_fused = fusion_of(plan) is not None
    result = [
        _neighbour(problem, hardware, call, name, placement, choice, is_fused)
        for name, placement, choice in _choices(problem, plan, planned.role, generates)
    ]
    return tuple(
        sorted(
            result,
            key=lambda neighbour: (neighbour.step_seconds is None, neighbour.step_seconds or 0.0),
        )
    )


def _neighbour(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    call: str,
    name: str,
    placement: Placement,
    choice: MemoryChoice,
    is_fused: bool,
) -> Neighbour:
    try:
        plan = build_plan(check_feasible(apply_placement(problem, placement), choice))
    except (PlanError, ManifestError):
        return Neighbour(name, None, None)
    fused = best_fusion(problem, plan, hardware) if is_fused else None
    estimate = evaluate(problem, plan if fused is None else fused.plan, hardware)
    return Neighbour(name, _seconds(estimate, call), estimate.step_seconds)


def _seconds(estimate: Estimate, call: str) -> float | None:
    seconds = estimate.calls.get(call)
    return None if seconds is None else seconds.total


def _choices(
    problem: PlanningProblem, plan: Plan, role: str, generates: bool
) -> Iterator[tuple[str, Placement, MemoryChoice]]:
    placement, choice = _placement_of(plan), _choice(problem, plan)
    facts, role_placement = problem.models[role], placement[role]
    pool = plan.pool(role_placement.training.mesh.pool)
    if generates:
        # The other choices belong to calls that train the role or run it forward.
        for tensor in engine_tensors(problem, facts, _uncut(role_placement.generation), pool):
            if tensor != role_placement.generation.tensor:
                changed = replace(
                    role_placement, generation=replace(role_placement.generation, tensor=tensor)
                )
                yield f"engines of {tensor}", {**placement, role: changed}, choice
        return
    for cut in cuts(facts, _uncut(role_placement.training), pool):
        if cut != (role_placement.training.tensor, role_placement.training.pipeline):
            changed = replace(role_placement, training=with_cut(role_placement.training, cut))
            name = f"tensor {cut.tensor} x pipeline {cut.pipeline}"
            yield name, {**placement, role: changed}, choice
    if facts.fixed.micro_batch_tokens is None:
        for tokens in micro_batch_sizes(problem):
            if tokens != choice.micro_batch_tokens[role]:
                name = f"micro-batches of {tokens} tokens"
                sizes = {**choice.micro_batch_tokens, role: tokens}
                yield name, placement, replace(choice, micro_batch_tokens=sizes)
    if facts.is_trained and facts.fixed.recompute is None:
        is_recomputed = role in choice.recomputed
        name = "activations kept" if is_recomputed else "activations recomputed"
        # The symmetric difference switches the role's setting.
        yield name, placement, replace(choice, recomputed=choice.recomputed ^ {role})


def _uncut(placement: CallPlacement) -> CallPlacement:
    # A cut in a placement counts as fixed, so the planned one would be the only option.
    return replace(placement, tensor=None, pipeline=None)


def _placement_of(plan: Plan) -> dict[str, RolePlacement]:
    """The placement of a plan, with its cuts and sizes of engines."""
    placement = {}
    for role in plan.roles:
        if role.mesh is not None:
            training = _call_placement(role.mesh, role.mesh.pipeline)
            engines = plan.generation(role.role)
            generation = training if engines is None else _call_placement(engines.mesh, None)
            placement[role.role] = RolePlacement(training, generation)
    return placement


def _call_placement(mesh: Mesh, pipeline: int | None) -> CallPlacement:
    devices = Mesh(pool=mesh.pool, first_rank=mesh.first_rank, data=mesh.num_devices)
    return CallPlacement(devices, mesh.tensor, pipeline, is_chosen=True)


def _choice(problem: PlanningProblem, plan: Plan) -> MemoryChoice:
    return MemoryChoice(
        micro_batch_tokens={
            role.role: role.micro_batch_tokens
            for role in plan.roles
            if role.micro_batch_tokens is not None
        },
        recomputed=frozenset(role.role for role in plan.roles if role.recomputes),
        forced_recompute=forced_recompute(problem),
        offload=_offload(problem, plan),
    )


def _offload(problem: PlanningProblem, plan: Plan) -> OffloadChoice:
    depths = {role.role: role.offload for role in plan.roles if role.mesh is not None}
    choices = offload_choices(problem, device_groups(problem.pools, _placement_of(plan)))
    return next(
        choice
        for choice in choices
        if all(choice.depth_of(role) is depth for role, depth in depths.items())
    )
