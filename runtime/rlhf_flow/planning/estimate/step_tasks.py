"""The calls of a planned step as tasks of the simulation. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.graph import Graph
from rlhf_flow.planning.event_graph import PASSES_AHEAD, PoolRanks, Task
from rlhf_flow.planning.simulation import Simulation, simulate


def step_tasks(graph: Graph, plan: Plan, seconds: Mapping[str, float]) -> tuple[Task, ...]:
    """All calls of a step in program order, those of the plan among them.

    A call of a region takes as long as all of its runs together: as often as it is expected to run
    in a pass.

    Args:
        graph: of the step.
        plan: its ranks.
        seconds: of one run of each call, by its site; those left out take no time.
    """
    previous: dict[str, list[str]] = defaultdict(list)
    for edge in graph.version_edges:
        if edge.iterations == 1:
            previous[edge.target].append(edge.source)
    return tuple(
        Task(
            id=call.call,
            seconds=seconds.get(call.call, 0.0) * call.expected_count,
            ranks=_ranks(call),
            after=tuple(sorted(graph.predecessors(call.call))),
            after_previous=tuple(dict.fromkeys(previous[call.call])),
        )
        for call in plan.calls
        if call.graph is GraphName.STEP
    )


def simulate_step(graph: Graph, plan: Plan, seconds: Mapping[str, float]) -> Simulation:
    """Steps as the driver sends them, one ahead where nothing is repeated; arguments as above."""
    return simulate(
        step_tasks(graph, plan, seconds), passes_ahead=0 if graph.repeats else PASSES_AHEAD
    )


def _ranks(call: CallPlan) -> tuple[PoolRanks, ...]:
    meshes = [mesh for mesh in (call.mesh, call.source_mesh) if mesh is not None]
    return tuple(dict.fromkeys(PoolRanks(mesh.pool, mesh.ranks) for mesh in meshes))
