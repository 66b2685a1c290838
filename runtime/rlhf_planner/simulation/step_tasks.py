"""Tasks of the simulation for the calls of a planned step. Pure.

The order is the runtime's (rlhf_runtime.controller.dispatch). With a fusion, the call that finishes
responses comes right after the one that generates them. A release of memory may follow, which
engines that finish nothing do at once. Calls that begin early keep their position, over the
responses that have ended. Their second parts are sent before the next call that does not begin
early, or at the end of the step.
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

# Suffixes of a call's site: its part over responses that ended early, and over the others. Also of
# the engines that release memory at once, and of those that finish.
EARLY, LATE = " (early)", " (late)"


def site_of(task: str) -> str:
    """The call that a task is, or is a part of."""
    return task.removesuffix(EARLY).removesuffix(LATE)


def fused_tasks(
    calls: Sequence[CallPlan],
    tasks: Sequence[Task],
    fusion: Fusion,
    late_seconds: Mapping[str, float],
) -> tuple[Task, ...]:
    """Split the tasks of calls in two parts.

    Args:
        calls: of the step, in program order.
        tasks: one for each call, as if nothing overlapped.
        fusion: the overlap.
        late_seconds: seconds of second parts; a missing one takes no time.
    """
    return tuple(_Order(fusion, _finish_of(calls), late_seconds).sent(calls, tasks))


def _finish_of(calls: Sequence[CallPlan]) -> str:
    return next(call.call for call in calls if call.kind is CallKind.FINISH)


class _Order:
    """The order in which tasks are sent."""

    def __init__(self, fusion: Fusion, finish: str, late_seconds: Mapping[str, float]) -> None:
        self._fusion, self._finish, self._late_seconds = fusion, finish, late_seconds
        self._late_parts: list[Task] = []
        # Task after which all of a call's rows are complete, by site.
        self._complete = {fusion.generate: finish} | {site: site + LATE for site in fusion.calls}

    def sent(self, calls: Sequence[CallPlan], tasks: Sequence[Task]) -> Iterator[Task]:
        for call, task in zip(calls, tasks, strict=True):
            if call.call in self._fusion.calls:
                yield self._begun(task)
                continue
            yield from self._late_parts
            self._late_parts.clear()
            if call.call == self._finish:
                yield replace(task, after=(self._fusion.generate,))
            elif self._releases_partly(call):
                yield from self._release(call, task)
            else:
                yield self._after_complete(task)
        yield from self._late_parts

    def _begun(self, task: Task) -> Task:
        """Build the first part; the second is queued."""
        # The first part does not wait for the last responses of this step, so only its dependencies
        # on the step before are renamed. The second part waits for the first and for all responses.
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

    def _after_complete(self, task: Task) -> Task:
        return replace(
            task,
            after=self._renamed(task.after),
            after_previous=self._renamed(task.after_previous),
        )

    def _renamed(self, sites: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._complete.get(site, site) for site in sites)

    def _releases_partly(self, call: CallPlan) -> bool:
        """True if engines release memory of which only some finish."""
        is_theirs = call.kind is CallKind.RELEASE and call.mesh is not None
        return is_theirs and call.mesh != self._fusion.mesh

    def _release(self, call: CallPlan, task: Task) -> Iterator[Task]:
        assert call.mesh is not None
        pool, all_ranks, finishing = call.mesh.pool, call.mesh.ranks, self._fusion.mesh.ranks
        parts = range(all_ranks.start, finishing.start), range(finishing.stop, all_ranks.stop)
        # Engines on either side of the finishing ones have no responses left.
        freed = tuple(PoolRanks(pool, ranks) for ranks in parts if ranks)
        yield replace(task, id=task.id + EARLY, ranks=freed)
        yield replace(task, id=task.id + LATE, ranks=(PoolRanks(pool, finishing),))


def step_tasks(
    graph: Graph,
    plan: Plan,
    seconds: Mapping[str, float],
    late_seconds: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Task, ...]:
    """All calls of a step in the order in which they are sent, transitions included.

    Args:
        graph: of the step.
        plan: its ranks.
        seconds: of one run of each call, by site; a missing one takes no time.
        late_seconds: seconds of second parts; see `fused_tasks`.
    """
    # A call of a region takes the time of all of its expected runs in a pass.
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
    """Simulate steps as the driver sends them; arguments as for `step_tasks`."""
    tasks = step_tasks(graph, plan, seconds, late_seconds)
    return simulate(tasks, passes_ahead=passes_ahead(graph))


def previous_calls(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Per call, the calls of the step before that must end before it starts."""
    previous: dict[str, list[str]] = defaultdict(list)
    for edge in graph.version_edges:
        if edge.iterations == 1:
            previous[edge.target].append(edge.source)
    return {target: tuple(dict.fromkeys(sources)) for target, sources in previous.items()}


def passes_ahead(graph: Graph) -> int:
    """Passes that the driver sends before the pass that runs has ended."""
    # Where a step waits for workers itself, the pass before would be reported a step too late.
    return 0 if graph.repeats else PASSES_AHEAD


def _ranks(call: CallPlan) -> tuple[PoolRanks, ...]:
    meshes = [mesh for mesh in (call.mesh, call.source_mesh) if mesh is not None]
    return tuple(dict.fromkeys(PoolRanks(mesh.pool, mesh.ranks) for mesh in meshes))
