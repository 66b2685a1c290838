"""Which engines should finish how many responses while other calls begin, if that makes a step of a
plan shorter. Pure and deterministic.

Every choice is evaluated by a simulated step. A threshold is tried for each half power
of two of the responses under way, then around the best, for each mesh that may finish.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion: the threshold is found by simulation.

A fusion that the manifest asks for, whatever it is worth (`rollout.stageFusion: Always`).

The fastest plan whose stages overlap, among some that were found without. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import NotOffered
from rlhf_planner.cost.batches import call_batch
from rlhf_planner.cost.calls import load_of_plan, models_of_plan
from rlhf_planner.cost.fusion import (
    Fusion,
    describe_fusion,
    fused_plan,
    fusion_of,
)
from rlhf_planner.cost.generation import sequences_at_once
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import Estimate, evaluate
from rlhf_planner.overlap.fusable_calls import (
    finish_meshes,
    fusable_calls,
    fused_generate,
    obstacle,
)
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.step_tasks import simulate_step

LEAST_GAIN = 0.01
"""Share of a step that a fusion must save: estimates are no more exact than that."""
COARSE_STEPS = 16
"""Thresholds that are tried first, each a square root of two below the one before."""
FINE_STEPS = 3
"""Thresholds on either side of the best of these, within the next."""


@dataclass(frozen=True)
class FusedStep:
    """A plan with a fusion, and what it is worth."""

    plan: Plan
    fusion: Fusion
    step_seconds: float


def best_fusion(
    problem: PlanningProblem,
    plan: Plan,
    hardware: Mapping[str, Hardware],
    step_seconds: float | None = None,
) -> FusedStep | None:
    """The fusion with which steps of a plan are shortest. None: none saves enough, or is possible.

    Args:
        problem: what is planned.
        plan: of it, without a fusion.
        hardware: of the devices of each pool.
        step_seconds: of the steps to compare with. None: those of the plan.
    """
    meshes = [*fusion_meshes(problem, plan)]
    if not meshes:
        return None
    unfused = evaluate(problem, plan, hardware)
    wanted = (unfused.step_seconds if step_seconds is None else step_seconds) * (1 - LEAST_GAIN)
    choices = [mesh for mesh in meshes if _least_seconds(problem, plan, unfused, mesh) < wanted]
    if not choices:
        return None
    most = rows_under_way(problem, plan)
    best = _best(_of_mesh(problem, plan, hardware, mesh, most) for mesh in choices)
    return best if best.step_seconds < wanted else None


def _least_seconds(problem: PlanningProblem, plan: Plan, unfused: Estimate, mesh: Mesh) -> float:
    """Of a step, whatever the threshold: as if what begins early took no time. Few engines finish
    no sooner than all of them."""
    graph = problem.graphs[GraphName.STEP]
    early = fusable_calls(graph, plan, mesh)
    seconds = {call: 0.0 if call in early else each.total for call, each in unfused.calls.items()}
    return simulate_step(graph, plan, seconds).step_seconds


def _of_mesh(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware], mesh: Mesh, most: int
) -> FusedStep:
    """The best threshold of some engines, of so many rows at most."""
    graph = problem.graphs[GraphName.STEP]
    generate, calls = fused_generate(graph), fusable_calls(graph, plan, mesh)
    assert generate is not None

    def judge(rows: int) -> FusedStep:
        fusion = Fusion(generate.id, mesh, rows, calls)
        fused = fused_plan(plan, graph, fusion)
        return FusedStep(fused, fusion, evaluate(problem, fused, hardware).step_seconds)

    coarse = _best(map(judge, _coarse(most)))
    return _best([coarse, *map(judge, _around(coarse.fusion.threshold_rows, most))])


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


def rows_under_way(problem: PlanningProblem, plan: Plan) -> int:
    """Responses that all engines have under way when none waits any more; of more than these the
    time model does not know how far they are."""
    generate = fused_generate(problem.graphs[GraphName.STEP])
    assert generate is not None and generate.role is not None
    generation = plan.generation(generate.role)
    assert generation is not None
    batch, mesh = call_batch(problem, generate), generation.mesh
    load = load_of_plan(problem, models_of_plan(problem, plan)[generate.role], generation)
    cache = generation.kv_cache_bytes
    at_once = sequences_at_once(load, mesh.tensor, cache, batch.prompt, batch.response)
    return min(batch.rows, int(at_once * mesh.data))


def _coarse(most: int) -> list[int]:
    return _distinct((most * 2 ** (-number / 2) for number in range(1, COARSE_STEPS + 1)), most)


def _around(rows: int, most: int) -> list[int]:
    steps = [number for number in range(-FINE_STEPS, FINE_STEPS + 1) if number]
    return _distinct((rows * 2 ** (step / 2 / (FINE_STEPS + 1)) for step in steps), most)


def _distinct(rows: Iterable[float], most: int) -> list[int]:
    """Thresholds of at least one row, and not of all."""
    return [*dict.fromkeys(max(1, min(most - 1, round(row))) for row in rows)]


def _best(found: Iterable[FusedStep]) -> FusedStep:
    """The shortest; of equal ones the smallest threshold."""
    return min(found, key=lambda each: (each.step_seconds, each.fusion.threshold_rows))


def fused_as_told(problem: PlanningProblem, plan: Plan) -> Plan:
    """A plan with a fusion, if the manifest asks for one and it has none yet: of most calls, with
    most engines to finish responses; from half of the responses on that are under way at once,
    unless the manifest says the number.

    Args:
        problem: what is planned.
        plan: of it.

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
    meshes = (*fusion_meshes(problem, plan), engines.mesh)  # verifiers are on no device
    choices = [(fusable_calls(graph, plan, mesh), mesh) for mesh in meshes]
    calls, mesh = max(choices, key=lambda each: len(each[0]))
    if not calls:
        raise NotOffered(_nothing_overlaps(problem, plan))
    rows = problem.fixed.stage_fusion_threshold or max(1, rows_under_way(problem, plan) // 2)
    made = call_batch(problem, generate).rows
    if rows >= made > 1:
        raise NotOffered(
            f"all responses of a step would be left from the beginning: got "
            f"rollout.stageFusionThreshold {rows}, allowed 1 to {made - 1} of the {made} that a "
            "step has; lower it"
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
        problem: what is planned.
        hardware: of the devices of each pool.
        plans: of it, without fusions. Those with roles apart may be slower without and faster with
            one.
        step_seconds: of the steps to compare with.
    """
    fixed = problem.fixed
    if fixed.stage_fusion is StageFusionType.NEVER or fixed.stage_fusion_threshold is not None:
        return None
    found = (best_fusion(problem, plan, hardware, step_seconds) for plan in plans)
    fused = [each for each in found if each is not None]
    return min(fused, key=lambda each: each.step_seconds, default=None)


def fastest_with_requested_fusion(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], plans: Sequence[Plan]
) -> Plan:
    """The first of some plans, or, where the manifest asks for a fusion, that with the shortest
    steps of those that can have one, with it.

    Raises:
        NotOffered: a fusion is asked for, and none of them can have one; the message is about the
            first.
    """
    if problem.fixed.stage_fusion is not StageFusionType.ALWAYS:
        return plans[0]
    fused = []
    for plan in plans:
        with suppress(NotOffered):
            fused.append(fused_as_told(problem, plan))
    if not fused:
        return fused_as_told(problem, plans[0])
    return min(fused, key=lambda plan: evaluate(problem, plan, hardware).step_seconds)


def fusion_reason(fused: FusedStep, step_seconds: float) -> str:
    """What a fusion is, and what it saves of steps of so many seconds."""
    saved = step_seconds - fused.step_seconds
    return (
        f"{describe_fusion(fused.fusion)}: steps are {saved:.2g} s shorter than those of the "
        "fastest plan without"
    )
