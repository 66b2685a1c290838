"""Event graph of a repeated step on exclusive devices, and the exact time of a step. Pure.

The arcs are those of the runtime. The driver sends the calls of a pass in program order, some
passes ahead of the one that runs. A rank runs its calls in the order in which they were sent; a
call starts when its inputs are ready and all of its ranks have reached it. The order on every rank
is fixed before anything runs, and times follow from sums and maxima alone.

Ends of tasks are longest paths through the arcs of all iterations (a linear system in max-plus
algebra). A path through many iterations consists of cycles of the arcs between the tasks of one, so
the time of a step in the long run is the largest cycle ratio: a cycle's seconds divided by the
iterations that it crosses. The end after k iterations differs from k times this ratio by at most a
constant.

Source: Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity (1992), chapter 3. The
search is Lawler's (Combinatorial Optimization, 1976, chapter 3), with the next candidate from the
cycle that refutes the last one (Dinkelbach, On nonlinear fractional programming, 1967).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import isfinite
from typing import NamedTuple

from rlhf_flow.errors import FlowError

# Passes that the driver sends before the pass that runs has ended, so that workers never wait for
# it.
PASSES_AHEAD = 1


class PoolRanks(NamedTuple):
    """Neighbouring ranks of a pool."""

    pool: str
    ranks: range
    """Ranks, as the pool numbers them."""


@dataclass(frozen=True)
class Task:
    """A call of a step, as the simulation sees it."""

    id: str
    seconds: float
    """Duration, alone on its ranks; 0 or more."""
    ranks: tuple[PoolRanks, ...] = ()
    """All of them run it from start to end. Empty: it runs off the ranks, such as verifiers on
    hosts."""
    after: tuple[str, ...] = ()
    """Tasks of the same iteration that end before it starts; they precede it in program order."""
    after_previous: tuple[str, ...] = ()
    """Tasks of the iteration before that end before it starts: version edges into the next step."""
    resource: str | None = None
    """Another exclusive resource, by name. Tasks off the ranks without one overlap with anything.
    """


class Cause(StrEnum):
    """The kind of a dependency."""

    INPUT = "input"
    """It reads the output of the other, or the weights that the other changes."""
    RANKS = "ranks"
    """They share ranks, and the other was sent before it."""
    RESOURCE = "resource"
    """They share another resource."""
    DRIVER = "driver"
    """The driver sends it when all of an earlier pass has ended."""


# A node that must have ended, and how many iterations earlier than the waiting node.
Arc = tuple[int, int]
# Dependencies of a node, with their kinds.
Arcs = Mapping[Arc, Cause]


@dataclass(frozen=True)
class AlikeRanks:
    """Ranks that run the same tasks: one of them represents all."""

    ranks: tuple[PoolRanks, ...]
    """Parts of the group, in the order of pools and ranks."""
    tasks: tuple[int, ...]
    """Indices of the tasks that they run, in program order."""

    @property
    def num_ranks(self) -> int:
        """Number of ranks in the group."""
        return sum(len(part.ranks) for part in self.ranks)


@dataclass(frozen=True)
class EventGraph:
    """Tasks of one iteration, with the dependencies of each."""

    tasks: tuple[Task, ...]
    """Tasks in program order."""
    groups: tuple[AlikeRanks, ...]
    """All ranks with tasks, in the order of pools and ranks."""
    arcs: tuple[Arcs, ...]
    """Arcs into each task, and last into the end of a pass: a node after all tasks, without
    duration. Arcs within an iteration come from lower nodes."""

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Duration of each node."""
        return (*(task.seconds for task in self.tasks), 0.0)

    def work(self, group: AlikeRanks) -> float:
        """Busy seconds of a group's ranks in an iteration."""
        return sum(self.tasks[number].seconds for number in group.tasks)


def event_graph(tasks: Sequence[Task], passes_ahead: int = PASSES_AHEAD) -> EventGraph:
    """Build the event graph of tasks as the runtime runs them.

    Args:
        tasks: of one iteration, in program order.
        passes_ahead: passes that the driver sends before the pass that runs has ended; 0 for a step
            that repeats something, as the driver then waits for each pass.

    Raises:
        FlowError: two tasks of one id, a dependency that is missing or comes later in program
            order, or seconds that are negative or not finite.
    """
    numbers = _numbers(tasks)
    groups = rank_groups(tasks)
    arcs = _no_arcs(tasks)
    _add_dependencies(arcs, tasks, numbers)
    for queue in sorted({group.tasks for group in groups}):
        _add_queue(arcs, queue, Cause.RANKS)
    for waiting in _resource_queues(tasks):
        _add_queue(arcs, waiting, Cause.RESOURCE)
    _add_driver(arcs, passes_ahead)
    return EventGraph(tuple(tasks), groups, tuple(arcs))


def dependency_graph(tasks: Sequence[Task], passes_ahead: int = PASSES_AHEAD) -> EventGraph:
    """The event graph without arcs of ranks and resources: it bounds every order of the tasks.

    Raises:
        FlowError: as for `event_graph`.
    """
    arcs = _no_arcs(tasks)
    _add_dependencies(arcs, tasks, _numbers(tasks))
    _add_driver(arcs, passes_ahead)
    return EventGraph(tuple(tasks), rank_groups(tasks), tuple(arcs))


def rank_groups(tasks: Sequence[Task]) -> tuple[AlikeRanks, ...]:
    """Group all ranks of some tasks by the set of tasks that they run."""
    uses: dict[str, list[tuple[int, range]]] = defaultdict(list)
    for number, task in enumerate(tasks):
        for pool, ranks in task.ranks:
            uses[pool].append((number, ranks))
    parts: dict[tuple[int, ...], list[PoolRanks]] = defaultdict(list)
    for pool in sorted(uses):
        # Pools are cut at the borders of tasks' ranks, so the cost grows with tasks, not with
        # ranks.
        cuts = sorted({cut for _, ranks in uses[pool] for cut in (ranks.start, ranks.stop)})
        index = {cut: number for number, cut in enumerate(cuts)}
        running: list[list[int]] = [[] for _ in cuts]
        for number, ranks in uses[pool]:
            for task_list in running[index[ranks.start] : index[ranks.stop]]:
                if task_list[-1:] != [number]:
                    task_list.append(number)
        for task_list, first, end in zip(running, cuts, cuts[1:], strict=False):
            if task_list:
                _append(parts[tuple(task_list)], pool, first, end)
    return tuple(AlikeRanks(tuple(ranks), tasks_there) for tasks_there, ranks in parts.items())


def _append(parts: list[PoolRanks], pool: str, first: int, end: int) -> None:
    """Append ranks, merged with the last part if they are its neighbours."""
    if parts and parts[-1].pool == pool and parts[-1].ranks.stop == first:
        first = parts.pop().ranks.start
    parts.append(PoolRanks(pool, range(first, end)))


def _numbers(tasks: Sequence[Task]) -> dict[str, int]:
    numbers = {task.id: number for number, task in enumerate(tasks)}
    if len(numbers) < len(tasks):
        raise FlowError(
            f"two tasks have one id: got {', '.join(task.id for task in tasks)}, allowed ids that "
            "are unique in a step; rename one"
        )
    for task in tasks:
        if not (isfinite(task.seconds) and task.seconds >= 0):
            raise FlowError(
                f"a task's time is no duration: got {task.seconds} s for {task.id}, allowed 0 and "
                "more, finite; correct its estimate"
            )
    return numbers


def _no_arcs(tasks: Sequence[Task]) -> list[dict[Arc, Cause]]:
    return [{} for _ in range(len(tasks) + 1)]


def _add_dependencies(
    arcs: list[dict[Arc, Cause]], tasks: Sequence[Task], numbers: Mapping[str, int]
) -> None:
    for number, task in enumerate(tasks):
        for source in task.after:
            if numbers.get(source, number) >= number:
                raise FlowError(
                    f"{task.id} waits for what is not there or is sent after it: got {source}, "
                    f"allowed {', '.join(earlier.id for earlier in tasks[:number]) or 'nothing'}; "
                    "correct the dependency or the order of the tasks"
                )
            arcs[number][numbers[source], 0] = Cause.INPUT
        for source in task.after_previous:
            if source not in numbers:
                raise FlowError(
                    f"{task.id} waits for what the iteration before does not have: got {source}, "
                    f"allowed {', '.join(numbers)}; correct the dependency"
                )
            arcs[number][numbers[source], 1] = Cause.INPUT


def _add_queue(arcs: list[dict[Arc, Cause]], queue: Sequence[int], cause: Cause) -> None:
    """Chain tasks: each after the one before, the first after the last of the iteration before."""
    # `setdefault` keeps the cause of an arc that an input has added already.
    arcs[queue[0]].setdefault((queue[-1], 1), cause)
    for source, target in zip(queue, queue[1:], strict=False):
        arcs[target].setdefault((source, 0), cause)


def _resource_queues(tasks: Sequence[Task]) -> Iterable[list[int]]:
    queues: dict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        if task.resource is not None:
            queues[task.resource].append(number)
    return queues.values()


def _add_driver(arcs: list[dict[Arc, Cause]], passes_ahead: int) -> None:
    """Add the end of a pass, and the passes that wait for it."""
    end = len(arcs) - 1
    # Other tasks of the pass imply these arcs.
    waited_for = {source for sources in arcs for source, back in sources if back == 0}
    for number in range(end):
        # Tasks with a successor in the pass end before the pass anyway.
        if number not in waited_for:
            arcs[end][number, 0] = Cause.DRIVER
        # Tasks with a predecessor in the pass start after its beginning anyway.
        if all(back for _, back in arcs[number]):
            arcs[number].setdefault((end, passes_ahead + 1), Cause.DRIVER)
    arcs[end][end, 1] = Cause.DRIVER


# Share of all tasks' seconds below which differences are rounding.
RELATIVE_TOLERANCE = 1e-12


class Link(NamedTuple):
    """A node of a cycle, and its dependency on the node before it."""

    node: int
    iterations: int
    """Iterations from the node before it to this one."""
    cause: Cause
    """The kind of the dependency."""


class Cycle(NamedTuple):
    """Nodes that each wait for the one before, the first for the last."""

    seconds: float
    """Sum of the durations of all nodes."""
    iterations: int
    """Iterations that it crosses; at least 1."""
    links: tuple[Link, ...]
    """In the order in which they run, from the lowest node on."""

    @property
    def ratio(self) -> float:
        """Seconds per iteration."""
        return self.seconds / self.iterations


def critical_cycle(graph: EventGraph) -> Cycle:
    """A cycle of the largest ratio: seconds between the ends of two iterations, in the long run.

    The result is deterministic, also if several cycles have this ratio.
    """
    # For a candidate ratio r every node gets as potential the longest path to it, where an arc
    # counts the seconds of its source, less r per iteration that it crosses. If such potentials
    # exist, no cycle has a larger ratio: around a cycle their differences sum up to zero, so its
    # seconds are at most r times its iterations. If not, arcs that raise potentials for ever form a
    # cycle of a larger ratio, which is the next candidate.
    arcs, seconds = graph.arcs, graph.seconds
    best = Cycle(0.0, 1, (Link(len(arcs) - 1, 1, Cause.DRIVER),))
    potentials = [0.0] * len(arcs)
    while (
        larger := _larger_cycle(arcs, seconds, best.ratio, potentials)
    ) and larger.ratio > best.ratio:
        best = larger
    return best


def critical_ratio(graph: EventGraph, seconds: Sequence[float]) -> float:
    """The ratio of `critical_cycle` if nodes take other seconds: many durations of the same tasks
    share a graph.

    Args:
        graph: as `event_graph` builds it.
        seconds: of each node, the end of a pass included.
    """
    # The calls of a rank are a cycle through one iteration: often that of the largest ratio.
    queues = {group.tasks for group in graph.groups}
    ratio = max((sum(seconds[node] for node in queue) for queue in queues), default=0.0)
    potentials = [0.0] * len(seconds)
    while (
        larger := _larger_cycle(graph.arcs, seconds, ratio, potentials)
    ) and larger.ratio > ratio:
        ratio = larger.ratio
    return ratio


def _larger_cycle(
    arcs: Sequence[Arcs], seconds: Sequence[float], ratio: float, potentials: list[float]
) -> Cycle | None:
    """A cycle of a larger ratio, or None; raises `potentials` in place."""
    # Without a tolerance rounding alone could raise potentials for ever.
    tolerance = RELATIVE_TOLERANCE * sum(seconds)
    parents: list[Arc | None] = [None] * len(potentials)
    # As in Bellman and Ford's search: potentials that still rise after as many rounds as there are
    # nodes rise along a cycle.
    for _ in range(len(potentials) + 1):
        is_raised = False
        for node, into in enumerate(arcs):
            predecessor, highest = None, potentials[node] + tolerance
            for source, back in into:
                reached = potentials[source] + seconds[source] - ratio * back
                if reached > highest:
                    predecessor, highest = (source, back), reached
            if predecessor is not None:
                is_raised, parents[node], potentials[node] = True, predecessor, highest
        if not is_raised:
            return None
        if (node_on_cycle := _on_cycle(parents)) is not None:
            return _cycle_through(node_on_cycle, parents, arcs, seconds)
    raise AssertionError("potentials rise for ever only along a cycle")


def _on_cycle(parents: Sequence[Arc | None]) -> int | None:
    """A node that is, through others, its own parent; None if there is none."""
    # Nodes are marked with the start of the walk that reached them first: a walk that meets its own
    # mark has closed a cycle.
    visited = [-1] * len(parents)
    for start in range(len(parents)):
        node = start
        while visited[node] < 0:
            visited[node] = start
            arc = parents[node]
            if arc is None:
                break
            node = arc[0]
        else:
            if visited[node] == start:
                return node
    return None


def _cycle_through(
    node: int, parents: Sequence[Arc | None], arcs: Sequence[Arcs], seconds: Sequence[float]
) -> Cycle:
    links: list[Link] = []
    while not links or node != links[0].node:
        arc = parents[node]
        assert arc is not None
        links.append(Link(node, arc[1], arcs[node][arc]))
        node = arc[0]
    links.reverse()
    # The lowest node comes first, so that the result does not depend on where the search met it.
    first = min(range(len(links)), key=lambda index: links[index].node)
    ordered = (*links[first:], *links[:first])
    of_nodes = sum(seconds[link.node] for link in ordered)
    return Cycle(of_nodes, sum(link.iterations for link in ordered), ordered)
