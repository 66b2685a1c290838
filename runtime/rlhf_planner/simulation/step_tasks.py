"""The tasks of a step some of whose calls begin before the last response has ended. Pure.

The order is the runtime's (rlhf_runtime.controller.dispatch): the call that finishes responses
comes right after that which generates them, and then, where it is planned, memory is given back, on
engines that finish nothing at once. Calls that begin early are sent in their place, over what has
ended; their second parts wait until a call is sent that does not begin early, or the step ends.

The calls of a planned step as tasks of the simulation. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rlhf_api.calls import CallKind
from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.fusion import Fusion, fusion_of
from rlhf_planner.simulation.event_graph import PASSES_AHEAD, PoolRanks, Task
from rlhf_planner.simulation.simulate import Simulation, simulate

EARLY, LATE = " (early)", " (late)"
"""After a call's site: its part over responses that ended early, and over the others; also of the
engines that give memory back at once, and of those that finish."""


def site_of(task: str) -> str:
    """The call of which a task is one, or a part."""
    return task.removesuffix(EARLY).removesuffix(LATE)


def fused_tasks(
    calls: Sequence[CallPlan],
    tasks: Sequence[Task],
    fusion: Fusion,
    late_seconds: Mapping[str, float],
) -> tuple[Task, ...]:
    """Tasks with those in two that are in two parts.

    Args:
        calls: of the step, in program order.
        tasks: one for each of them, as if nothing overlapped.
        fusion: what does.
        late_seconds: of second parts, of the seconds of those calls; those left out take no time.
    """
    return tuple(_Order(fusion, _finish_of(calls), late_seconds).sent(calls, tasks))


def _finish_of(calls: Sequence[CallPlan]) -> str:
    return next(call.call for call in calls if call.kind is CallKind.FINISH)


class _Order:
    """What is sent when."""

    def __init__(self, fusion: Fusion, finish: str, late_seconds: Mapping[str, float]) -> None:
        self._fusion, self._finish, self._late_seconds = fusion, finish, late_seconds
        self._late_parts: list[Task] = []
        self._whole = {fusion.generate: finish} | {site: site + LATE for site in fusion.calls}
        """When all of a call's rows are there."""

    def sent(self, calls: Sequence[CallPlan], tasks: Sequence[Task]) -> Iterator[Task]:
        for call, task in zip(calls, tasks, strict=True):
            if call.call in self._fusion.calls:
                yield self._begun(task)
                continue
            yield from self._late_parts
            self._late_parts.clear()
            if call.call == self._finish:
                yield replace(task, after=(self._fusion.generate,))
            elif self._gives_back(call):
                yield from self._given_back(call, task)
            else:
                yield self._after_whole(task)
        yield from self._late_parts

    def _begun(self, task: Task) -> Task:
        """The first part; the second is kept for later."""
        late = self._late_seconds.get(task.id, 0.0)
        early = replace(
            task,
            id=task.id + EARLY,
            seconds=max(0.0, task.seconds - late),
            after_previous=self._renamed(task.after_previous),
        )
        after = early.id, self._finish
        rest = replace(task, id=task.id + LATE, seconds=late, after=after, after_previous=())
        self._late_parts.append(rest)
        return early

    def _after_whole(self, task: Task) -> Task:
        return replace(
            task,
            after=self._renamed(task.after),
            after_previous=self._renamed(task.after_previous),
        )

    def _renamed(self, sites: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._whole.get(site, site) for site in sites)

    def _gives_back(self, call: CallPlan) -> bool:
        """Whether engines give their memory back of which not all finish."""
        is_theirs = call.kind is CallKind.RELEASE and call.mesh is not None
        return is_theirs and call.mesh != self._fusion.mesh

    def _given_back(self, call: CallPlan, task: Task) -> Iterator[Task]:
        assert call.mesh is not None
        pool, all_ranks, finishing = call.mesh.pool, call.mesh.ranks, self._fusion.mesh.ranks
        parts = range(all_ranks.start, finishing.start), range(finishing.stop, all_ranks.stop)
        freed = tuple(PoolRanks(pool, ranks) for ranks in parts if ranks)
        yield replace(task, id=task.id + EARLY, ranks=freed)
        yield replace(task, id=task.id + LATE, ranks=(PoolRanks(pool, finishing),))


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
    # Where a step waits for workers itself, the pass before would be reported a step too late.
    return 0 if graph.repeats else PASSES_AHEAD


def _ranks(call: CallPlan) -> tuple[PoolRanks, ...]:
    meshes = [mesh for mesh in (call.mesh, call.source_mesh) if mesh is not None]
    return tuple(dict.fromkeys(PoolRanks(mesh.pool, mesh.ranks) for mesh in meshes))
