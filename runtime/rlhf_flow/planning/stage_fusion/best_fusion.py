"""Which engines should finish how many responses while other calls begin, if that makes a step of a
plan shorter. Pure and deterministic.

Every choice is judged by a simulated step, as plans are. A threshold is tried for each half power
of two of the responses under way, then around the best, for each mesh that may finish.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion: the threshold is found by simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_flow.planning.estimate.call_batches import call_batch
from rlhf_flow.planning.estimate.evaluate import Estimate, evaluate
from rlhf_flow.planning.estimate.planned_roles import planned_load, planned_models
from rlhf_flow.planning.estimate.step_tasks import simulate_step
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.generation import sequences_at_once
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.stage_fusion.finish_meshes import finish_meshes
from rlhf_flow.planning.stage_fusion.fusable_calls import fusable_calls, fused_generate, obstacle
from rlhf_flow.planning.stage_fusion.fused_plan import Fusion, fused_plan

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
    load = planned_load(problem, planned_models(problem, plan)[generate.role], generation)
    cache = generation.kv_cache_bytes
    at_once = sequences_at_once(load, mesh.tensor, cache, batch.prompt, batch.response)
    return min(batch.rows, int(at_once * mesh.data))


def _coarse(most: int) -> list[int]:
    return _distinct((most * 2 ** (-number / 2) for number in range(1, COARSE_STEPS + 1)), most)


def _around(rows: int, most: int) -> list[int]:
    steps = [number for number in range(-FINE_STEPS, FINE_STEPS + 1) if number]
    return _distinct((rows * 2 ** (each / 2 / (FINE_STEPS + 1)) for each in steps), most)


def _distinct(rows: Iterable[float], most: int) -> list[int]:
    """Thresholds of at least one row, and not of all."""
    return [*dict.fromkeys(max(1, min(most - 1, round(each))) for each in rows)]


def _best(found: Iterable[FusedStep]) -> FusedStep:
    """The shortest; of equal ones the smallest threshold."""
    return min(found, key=lambda each: (each.step_seconds, each.fusion.threshold_rows))
