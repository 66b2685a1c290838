"""What one call of a plan would take otherwise: plans that differ from it in one choice of the
call's role. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_flow.errors import PlanError
from rlhf_planner.cost.fusion import fusion_of
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import Estimate, evaluate
from rlhf_planner.feasibility import fit_job, place_job
from rlhf_planner.memory.choices import MemoryChoice, micro_batch_sizes, told_to_recompute
from rlhf_planner.memory.offloading import OffloadChoice, offload_choices
from rlhf_planner.overlap.choice import best_fusion
from rlhf_planner.placement.placement import CallPlace, RolePlace, device_groups
from rlhf_planner.plan_builder import fitted_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.strategies.parallelism import cut_place, cuts, engine_tensors
from rlhf_planner.strategies.placements import Placement

GENERATION = (CallKind.GENERATE, CallKind.RESHARD, CallKind.RELEASE, CallKind.FINISH)
"""Calls on a role's engines."""


@dataclass(frozen=True)
class Variant:
    """A plan that differs in one choice."""

    name: str
    """What is different, for people."""
    call_seconds: float | None
    """Of one run of the call. None: it does not have it, or does not fit."""
    step_seconds: float | None
    """Of its steps. None: the plan does not fit."""


def variants(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware], call: str
) -> tuple[Variant, ...]:
    """Plans that differ in one choice of the role of a call, least time of a step first; last those
    that do not fit. Where stages of the plan overlap they may in these, as is best for each.

    Args:
        problem: what was planned.
        plan: of it.
        hardware: of the devices of each pool.
        call: the site of a call of the step with a model.
    """
    planned = plan.call(GraphName.STEP, call)
    assert planned is not None and planned.role is not None
    generates = planned.kind in GENERATION
    is_fused = fusion_of(plan) is not None
    found = [
        _variant(problem, hardware, call, name, places, choice, is_fused)
        for name, places, choice in _others(problem, plan, planned.role, generates)
    ]
    return tuple(
        sorted(found, key=lambda each: (each.step_seconds is None, each.step_seconds or 0.0))
    )


def _variant(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    call: str,
    name: str,
    places: Placement,
    choice: MemoryChoice,
    is_fused: bool,
) -> Variant:
    try:
        plan = fitted_plan(fit_job(place_job(problem, places), choice))
    except (PlanError, ManifestError):
        return Variant(name, None, None)
    fused = best_fusion(problem, plan, hardware) if is_fused else None
    found = evaluate(problem, plan if fused is None else fused.plan, hardware)
    return Variant(name, _seconds(found, call), found.step_seconds)


def _seconds(found: Estimate, call: str) -> float | None:
    seconds = found.calls.get(call)
    return None if seconds is None else seconds.total


def _others(
    problem: PlanningProblem, plan: Plan, role: str, generates: bool
) -> Iterator[tuple[str, Placement, MemoryChoice]]:
    places, choice = _places(plan), _choice(problem, plan)
    facts, place = problem.models[role], places[role]
    pool = plan.pool(place.training.mesh.pool)
    if generates:
        for tensor in engine_tensors(problem, facts, _uncut(place.generation), pool):
            if tensor != place.generation.tensor:
                changed = replace(place, generation=replace(place.generation, tensor=tensor))
                yield f"engines of {tensor}", {**places, role: changed}, choice
        return
    for cut in cuts(facts, _uncut(place.training), pool):
        if cut != (place.training.tensor, place.training.pipeline):
            changed = replace(place, training=cut_place(place.training, cut))
            name = f"tensor {cut.tensor} x pipeline {cut.pipeline}"
            yield name, {**places, role: changed}, choice
    if facts.fixed.micro_batch_tokens is None:
        for tokens in micro_batch_sizes(problem):
            if tokens != choice.micro_batch_tokens[role]:
                name = f"micro-batches of {tokens} tokens"
                sizes = {**choice.micro_batch_tokens, role: tokens}
                yield name, places, replace(choice, micro_batch_tokens=sizes)
    if facts.is_trained and facts.fixed.recompute is None:
        again = role in choice.recomputed
        name = "activations kept" if again else "activations recomputed"
        yield name, places, replace(choice, recomputed=choice.recomputed ^ {role})


def _uncut(place: CallPlace) -> CallPlace:
    return replace(place, tensor=None, pipeline=None)


def _places(plan: Plan) -> dict[str, RolePlace]:
    """Where a plan has its roles, with their cuts and the sizes of their engines."""
    found = {}
    for role in plan.roles:
        if role.mesh is not None:
            training = _place(role.mesh, role.mesh.pipeline)
            engines = plan.generation(role.role)
            generation = training if engines is None else _place(engines.mesh, None)
            found[role.role] = RolePlace(training, generation)
    return found


def _place(mesh: Mesh, pipeline: int | None) -> CallPlace:
    devices = Mesh(pool=mesh.pool, first_rank=mesh.first_rank, data=mesh.num_devices)
    return CallPlace(devices, mesh.tensor, pipeline, is_chosen=True)


def _choice(problem: PlanningProblem, plan: Plan) -> MemoryChoice:
    """How a plan computes within memory."""
    return MemoryChoice(
        micro_batch_tokens={
            role.role: role.micro_batch_tokens
            for role in plan.roles
            if role.micro_batch_tokens is not None
        },
        recomputed=frozenset(role.role for role in plan.roles if role.recomputes),
        told_to_recompute=told_to_recompute(problem),
        offload=_offload(problem, plan),
    )


def _offload(problem: PlanningProblem, plan: Plan) -> OffloadChoice:
    depths = {role.role: role.offload for role in plan.roles if role.mesh is not None}
    choices = offload_choices(problem, device_groups(problem.pools, _places(plan)))
    return next(
        choice
        for choice in choices
        if all(choice.depth_of(role) is depth for role, depth in depths.items())
    )
