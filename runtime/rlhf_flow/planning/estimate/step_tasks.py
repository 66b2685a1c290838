"""The calls of a planned step as tasks of the simulation. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.planning.estimate.fused_tasks import fused_tasks
from rlhf_flow.planning.event_graph import PASSES_AHEAD, PoolRanks, Task
from rlhf_flow.planning.simulation import Simulation, simulate
from rlhf_flow.planning.stage_fusion.fused_plan import fusion_of
from rlhf_flow.trace.graph import Graph


def step_tasks(
    graph: Graph,
    plan: Plan,
    seconds: Mapping[str, float],
    late_seconds: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Task, ...]:
    """All calls of a step in the order in which they are sent, those of the plan among them.

    A call of a region takes as long as all of its runs together: as often as it is expected to run
    in a pass.

    Args:
        graph: of the step.
        plan: its ranks.
        seconds: of one run of each call, by its site; those left out take no time.
        late_seconds: of these, those of second parts, where calls have two; see `fused_tasks`.
    """
    previous = previous_calls(graph)
    calls = [call for call in plan.calls if call.graph is GraphName.STEP]
    tasks = tuple(
        Task(
            id=call.call,
            seconds=seconds.get(call.call, 0.0) * call.expected_count,
            ranks=_ranks(call),
            after=tuple(sorted(graph.predecessors(call.call))),
            after_previous=previous.get(call.call, ()),
        )
        for call in calls
    )
    fusion = fusion_of(plan)
    return tasks if fusion is None else fused_tasks(calls, tasks, fusion, late_seconds)


def simulate_step(
    graph: Graph,
    plan: Plan,
    seconds: Mapping[str, float],
    late_seconds: Mapping[str, float] = MappingProxyType({}),
) -> Simulation:
    """Steps as the driver sends them, one ahead where nothing is repeated; arguments as above."""
    tasks = step_tasks(graph, plan, seconds, late_seconds)
    return simulate(tasks, passes_ahead=passes_ahead(graph))


def previous_calls(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """The calls of the step before that must end before a call starts, of every call with such."""
    found: dict[str, list[str]] = defaultdict(list)
    for edge in graph.version_edges:
        if edge.iterations == 1:
            found[edge.target].append(edge.source)
    return {target: tuple(dict.fromkeys(sources)) for target, sources in found.items()}


def passes_ahead(graph: Graph) -> int:
    """Passes that the driver sends before the one that runs is over."""
    return 0 if graph.repeats else PASSES_AHEAD


def _ranks(call: CallPlan) -> tuple[PoolRanks, ...]:
    meshes = [mesh for mesh in (call.mesh, call.source_mesh) if mesh is not None]
    return tuple(dict.fromkeys(PoolRanks(mesh.pool, mesh.ranks) for mesh in meshes))
