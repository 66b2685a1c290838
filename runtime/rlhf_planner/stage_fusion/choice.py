"""Choice of the overlap with the shortest step. Pure and deterministic.

A choice is the engines that finish and the number of unfinished responses at which they start. It
is evaluated by a simulated step. A threshold is tried for each half power of two of the running
responses, then around the best, for each mesh that may finish.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion: the threshold is found by simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import NotOffered
from rlhf_planner.cost.batches import call_batch
from rlhf_planner.cost.fusion import (
    Fusion,
    describe_fusion,
    fused_plan,
    fusion_of,
)
from rlhf_planner.cost.generation import sequences_at_once
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.plan import models_of_plan
from rlhf_planner.evaluate import Estimate, evaluate
from rlhf_planner.memory.generation import generation_load
from rlhf_planner.placement.strategy import strategy_of
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.step_tasks import simulate_step
from rlhf_planner.stage_fusion.fusable_calls import (
    finish_meshes,
    fusable_calls,
    fused_generate,
    obstacle,
)

# Minimum share of a step that a fusion must save: estimates are no more exact than that.
MIN_GAIN = 0.01
# Coarse thresholds, each a square root of two below the one before.
COARSE_STEPS = 16
# Fine thresholds on either side of the best coarse one.
FINE_STEPS = 3


@dataclass(frozen=True)
class FusedStep:
    """A plan with a fusion, and its step time."""

    plan: Plan
    fusion: Fusion
    step_seconds: float


def best_fusion(
    problem: PlanningProblem,
    plan: Plan,
    hardware: Mapping[str, Hardware],
    step_seconds: float | None = None,
) -> FusedStep | None:
    """The fusion with the shortest steps of a plan. None: none is possible or saves enough.

    Args:
        problem: the planning problem.
        plan: its plan, without a fusion.
        hardware: of the devices of each pool.
        step_seconds: to compare with. None: those of the plan.
    """
    meshes = [*fusion_meshes(problem, plan)]
    if not meshes:
        return None
    unfused = evaluate(problem, plan, hardware)
    target = (unfused.step_seconds if step_seconds is None else step_seconds) * (1 - MIN_GAIN)
    # A cheap bound rules out engines before all their thresholds are simulated.
    choices = [mesh for mesh in meshes if _bound_seconds(problem, plan, unfused, mesh) < target]
    if not choices:
        return None
    max_rows = running_rows(problem, plan)
    best = _best(_of_mesh(problem, plan, hardware, mesh, max_rows) for mesh in choices)
    return best if best.step_seconds < target else None


def _bound_seconds(problem: PlanningProblem, plan: Plan, unfused: Estimate, mesh: Mesh) -> float:
    """Lower bound of a step for all thresholds: calls that begin early take no time."""
    graph = problem.graphs[GraphName.STEP]
    early = fusable_calls(graph, plan, mesh)
    # Few engines finish no sooner than all of them, so generation takes at least its undivided
    # time.
    seconds = {
        call: 0.0 if call in early else call_seconds.total
        for call, call_seconds in unfused.calls.items()
    }
    return simulate_step(graph, plan, seconds).step_seconds


def _of_mesh(
    problem: PlanningProblem,
    plan: Plan,
    hardware: Mapping[str, Hardware],
    mesh: Mesh,
    max_rows: int,
) -> FusedStep:
    """The best threshold of some engines, up to a number of rows."""
    # Every evaluation simulates a step, so thresholds are tried on a coarse grid first.
    graph = problem.graphs[GraphName.STEP]
    generate, calls = fused_generate(graph), fusable_calls(graph, plan, mesh)
    assert generate is not None

    def with_threshold(rows: int) -> FusedStep:
        fusion = Fusion(generate.id, mesh, rows, calls)
        fused = fused_plan(plan, graph, fusion)
        return FusedStep(fused, fusion, evaluate(problem, fused, hardware).step_seconds)

    coarse = _best(map(with_threshold, _coarse(max_rows)))
    return _best([coarse, *map(with_threshold, _around(coarse.fusion.threshold_rows, max_rows))])


def fusion_meshes(problem: PlanningProblem, plan: Plan) -> Iterator[Mesh]:
    """Engines that may finish, so that a call on other devices begins early."""
    graph = problem.graphs[GraphName.STEP]
    generate = fused_generate(graph)
    if generate is None:
        return
    planned = plan.call(GraphName.STEP, generate.id)
    assert planned is not None and planned.mesh is not None
    engines = planned.mesh
    others = [
        site.mesh
        for call in graph.calls
        if obstacle(graph, plan, None, call) is None
        and (site := plan.call(GraphName.STEP, call.id)) is not None
        and site.mesh is not None
    ]
    yield from finish_meshes(engines, others)


def running_rows(problem: PlanningProblem, plan: Plan) -> int:
    """Running responses of all engines when none waits any more."""
    # The time model does not know the progress of more than these.
    generate = fused_generate(problem.graphs[GraphName.STEP])
    assert generate is not None and generate.role is not None
    generation = plan.generation(generate.role)
    assert generation is not None
    batch, mesh = call_batch(problem, generate), generation.mesh
    model = models_of_plan(problem, plan)[generate.role]
    load = generation_load(problem, model, strategy_of(plan).engines[generate.role])
    cache = generation.kv_cache_bytes
    at_once = sequences_at_once(load, mesh.tensor, cache, batch.prompt, batch.response)
    return min(batch.rows, int(at_once * mesh.data))


def _coarse(max_rows: int) -> list[int]:
    return _distinct(
        (max_rows * 2 ** (-number / 2) for number in range(1, COARSE_STEPS + 1)), max_rows
    )


def _around(rows: int, max_rows: int) -> list[int]:
    steps = [number for number in range(-FINE_STEPS, FINE_STEPS + 1) if number]
    return _distinct((rows * 2 ** (step / 2 / (FINE_STEPS + 1)) for step in steps), max_rows)


def _distinct(rows: Iterable[float], max_rows: int) -> list[int]:
    """Distinct thresholds of at least one row, and not of all."""
    return [*dict.fromkeys(max(1, min(max_rows - 1, round(row))) for row in rows)]


def _best(fused_steps: Iterable[FusedStep]) -> FusedStep:
    """The shortest; of equal ones the smallest threshold."""
    return min(
        fused_steps,
        key=lambda fused_step: (fused_step.step_seconds, fused_step.fusion.threshold_rows),
    )


def apply_requested_fusion(problem: PlanningProblem, plan: Plan) -> Plan:
    """Apply the fusion that the manifest requests (`rollout.stageFusion: Always`), unless the plan
    has one.

    Args:
        problem: the planning problem.
        plan: its plan.

    Raises:
        NotOffered: no call of the step can begin early in this plan; the message says why.
    """
    if problem.fixed.stage_fusion is not StageFusionType.ALWAYS or fusion_of(plan) is not None:
        return plan
    graph = problem.graphs[GraphName.STEP]
    generate = fused_generate(graph)
    if generate is None:
        raise NotOffered(_nothing_overlaps(problem, plan))
    engines = plan.call(GraphName.STEP, generate.id)
    assert engines is not None and engines.mesh is not None
    # Verifiers are on no device, so they may begin early even if all engines finish.
    meshes = (*fusion_meshes(problem, plan), engines.mesh)
    choices = [(fusable_calls(graph, plan, mesh), mesh) for mesh in meshes]
    # Most calls, then most engines; from half of the running responses on, unless the manifest
    # gives the number.
    calls, mesh = max(choices, key=lambda pair: len(pair[0]))
    if not calls:
        raise NotOffered(_nothing_overlaps(problem, plan))
    rows = problem.fixed.stage_fusion_threshold or max(1, running_rows(problem, plan) // 2)
    num_rows = call_batch(problem, generate).rows
    if rows >= num_rows > 1:
        raise NotOffered(
            f"all responses of a step would be left from the beginning: got "
            f"rollout.stageFusionThreshold {rows}, allowed 1 to {num_rows - 1} of the {num_rows} "
            "that a step has; lower it"
        )
    fusion = Fusion(generate.id, mesh, rows, calls)
    fused = fused_plan(plan, graph, fusion)
    reason = f"{describe_fusion(fusion)}: rollout.stageFusion says so"
    return fused.model_copy(update={"reasons": (*fused.reasons, reason)})


def _nothing_overlaps(problem: PlanningProblem, plan: Plan) -> str:
    graph = problem.graphs[GraphName.STEP]
    why = "; ".join(
        f"{call.id}: {obstacle(graph, plan, None, call) or 'it is on devices of all engines'}"
        for call in graph.calls_of_kind(CallKind.INFER, CallKind.SCORE)
    )
    return (
        "no call can begin before the last response has ended: got rollout.stageFusion Always, and "
        f"{why or 'no call that reads responses'}; place a role that reads responses apart from "
        "some engines (placement.groups), or write stageFusion: Auto"
    )


def fastest_fusion(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    plans: Iterable[Plan],
    step_seconds: float,
) -> FusedStep | None:
    """The plan with the shortest steps, with its fusion. None: none has clearly shorter ones.

    Args:
        problem: the planning problem.
        hardware: of the devices of each pool.
        plans: its plans, without fusions. A plan that is slower without a fusion may be faster with
            one.
        step_seconds: to compare with.
    """
    # A threshold needs stageFusion Always, for which `apply_requested_fusion` adds the fusion.
    fixed = problem.fixed
    if fixed.stage_fusion is StageFusionType.NEVER or fixed.stage_fusion_threshold is not None:
        return None
    fused_steps = (best_fusion(problem, plan, hardware, step_seconds) for plan in plans)
    fused = [fused_step for fused_step in fused_steps if fused_step is not None]
    return min(fused, key=lambda fused_step: fused_step.step_seconds, default=None)


def fastest_with_requested_fusion(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], plans: Sequence[Plan]
) -> Plan:
    """The first plan or, if the manifest requests a fusion, the fastest one that can have it, with
    it.

    Raises:
        NotOffered: a fusion is requested, and no plan can have one; the message is about the first.
    """
    if problem.fixed.stage_fusion is not StageFusionType.ALWAYS:
        return plans[0]
    fused = []
    for plan in plans:
        with suppress(NotOffered):
            fused.append(apply_requested_fusion(problem, plan))
    if not fused:
        return apply_requested_fusion(problem, plans[0])
    return min(fused, key=lambda plan: evaluate(problem, plan, hardware).step_seconds)


def fusion_reason(fused: FusedStep, step_seconds: float) -> str:
    """The sentence about a fusion, and what it saves."""
    saved = step_seconds - fused.step_seconds
    return (
        f"{describe_fusion(fused.fusion)}: steps are {saved:.2g} s shorter than those of the "
        "fastest plan without"
    )
