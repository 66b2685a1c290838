"""Who waits for whom when a step runs again and again on exclusive devices: tasks, and arcs between
them. Pure.

The arcs are those of the runtime. The driver sends the calls of a pass in program order, some
passes ahead of the one that runs. A rank runs its calls in the order in which they were sent; a
call starts when all that it reads is there and all of its ranks have reached it. So the order on
every rank is fixed before anything runs, and time follows from sums and maxima alone.

The seconds between two iterations of tasks that wait for each other, for ever: exactly. Pure.

Ends of tasks are longest paths through the arcs of all iterations (a linear system in the algebra
of maximum and sum). A path through many iterations is made of cycles of the arcs between the tasks
of one, so what a step takes in the long run is the largest ratio that a cycle has, of its tasks'
seconds to the iterations that it goes through. Ends after k iterations differ from k times this
ratio by no more than a constant.

Source: Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity (1992), chapter 3. The
search is Lawler's (Combinatorial Optimization, 1976, chapter 3), with the next candidate taken from
the cycle that refutes the last one (Dinkelbach, On nonlinear fractional programming, 1967).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

from rlhf_flow.errors import FlowError

PASSES_AHEAD = 1
"""Passes that the driver sends before the one that runs is over: workers never wait for it."""


class PoolRanks(NamedTuple):
    """Neighbouring ranks of a pool."""

    pool: str
    ranks: range
    """As the pool numbers them."""


@dataclass(frozen=True)
class Task:
    """A call of a step, as far as time is concerned."""

    id: str
    seconds: float
    """From its start to its end, alone on its ranks; 0 or more."""
    ranks: tuple[PoolRanks, ...] = ()
    """All of them run it from its start to its end. None: it runs beside the ranks, such as
    verifiers on hosts."""
    after: tuple[str, ...] = ()
    """Tasks of the same iteration that end before it starts; they come before it in program
    order."""
    after_previous: tuple[str, ...] = ()
    """Tasks of which that of the iteration before ends before it starts: version edges into the
    next step."""
    resource: str | None = None
    """What else it has to itself, by name. Tasks beside the ranks without one overlap with
    anything."""


class Cause(StrEnum):
    """Why a task waits for another."""

    INPUT = "input"
    """It reads what the other writes, or the weights that it changes."""
    RANKS = "ranks"
    """They share ranks, and the other was sent before it."""
    RESOURCE = "resource"
    """They share another resource."""
    DRIVER = "driver"
    """The driver sends it when all of an earlier pass has ended."""


Arc = tuple[int, int]
"""The number of a node that must have ended, and how many iterations before that of the node that
waits for it."""
Arcs = Mapping[Arc, Cause]
"""All that a node waits for, and why."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks that run the same tasks: one of them stands for all."""

    ranks: tuple[PoolRanks, ...]
    """In the order of pools and ranks."""
    tasks: tuple[int, ...]
    """Numbers of the tasks that they run, in program order."""

    @property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        return sum(len(part.ranks) for part in self.ranks)


@dataclass(frozen=True)
class EventGraph:
    """Tasks of one iteration, and all that a task of an iteration waits for."""

    tasks: tuple[Task, ...]
    """In program order."""
    groups: tuple[RankGroup, ...]
    """All ranks that run something, in the order of pools and ranks."""
    arcs: tuple[Arcs, ...]
    """Into each task, and last into the end of a pass: a node after all tasks, that takes no time.
    Arcs within an iteration come from nodes with smaller numbers."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each node takes."""
        return (*(task.seconds for task in self.tasks), 0.0)

    def work(self, group: RankGroup) -> float:
        """Seconds for which a group's ranks are busy in an iteration."""
        return sum(self.tasks[number].seconds for number in group.tasks)


def event_graph(tasks: Sequence[Task], passes_ahead: int = PASSES_AHEAD) -> EventGraph:
    """What waits for what, as the runtime runs tasks.

    Args:
        tasks: of one iteration, in program order.
        passes_ahead: passes that the driver sends before the one that runs is over; 0 where a step
            repeats something, as the driver then waits for each pass.

    Raises:
        FlowError: two tasks of one id, a dependency that is not there or comes later in program
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
    """The same where ranks and resources hold nothing up: what holds for any order of the tasks.

    Raises:
        FlowError: as for `event_graph`.
    """
    arcs = _no_arcs(tasks)
    _add_dependencies(arcs, tasks, _numbers(tasks))
    _add_driver(arcs, passes_ahead)
    return EventGraph(tuple(tasks), rank_groups(tasks), tuple(arcs))


def rank_groups(tasks: Sequence[Task]) -> tuple[RankGroup, ...]:
    """All ranks of some tasks, as few groups as there are sets of tasks that a rank runs.

    The cost grows with the number of tasks and not with that of ranks: pools are cut where a task's
    ranks begin or end.
    """
    uses: dict[str, list[tuple[int, range]]] = defaultdict(list)
    for number, task in enumerate(tasks):
        for pool, ranks in task.ranks:
            uses[pool].append((number, ranks))
    parts: dict[tuple[int, ...], list[PoolRanks]] = defaultdict(list)
    for pool in sorted(uses):
        cuts = sorted({cut for _, ranks in uses[pool] for cut in (ranks.start, ranks.stop)})
        index = {cut: number for number, cut in enumerate(cuts)}
        running: list[list[int]] = [[] for _ in cuts]
        for number, ranks in uses[pool]:
            for found in running[index[ranks.start] : index[ranks.stop]]:
                if found[-1:] != [number]:
                    found.append(number)
        for found, first, end in zip(running, cuts, cuts[1:], strict=False):
            if found:
                _append(parts[tuple(found)], pool, first, end)
    return tuple(RankGroup(tuple(ranks), tasks_there) for tasks_there, ranks in parts.items())


def _append(parts: list[PoolRanks], pool: str, first: int, end: int) -> None:
    """Add ranks, to the last part where they are its neighbours."""
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
                    f"allowed {', '.join(each.id for each in tasks[:number]) or 'nothing'}; "
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
    """Each after the one before it, the first after the last one of the iteration before."""
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
    """A pass ends with the last of its tasks, and after the pass before; a later one begins after
    that. Tasks that another one of the pass waits for, or that wait for another one, need no arc of
    their own."""
    end = len(arcs) - 1
    waited_for = {source for found in arcs for source, back in found if back == 0}
    for number in range(end):
        if number not in waited_for:
            arcs[end][number, 0] = Cause.DRIVER
        if all(back for _, back in arcs[number]):
            arcs[number].setdefault((end, passes_ahead + 1), Cause.DRIVER)
    arcs[end][end, 1] = Cause.DRIVER


RELATIVE_TOLERANCE = 1e-12
"""Of all tasks' seconds: smaller differences are rounding."""


class Link(NamedTuple):
    """A node on a cycle, and why it waits for the one before it."""

    node: int
    iterations: int
    """How many iterations before its own that of the node before it is."""
    cause: Cause
    """Why it waits for it."""


class Cycle(NamedTuple):
    """Nodes each of which waits for the one before, the first for the last."""

    seconds: float
    """Of all its nodes."""
    iterations: int
    """Through how many it goes; at least 1."""
    links: tuple[Link, ...]
    """In the order in which they run, from the smallest node on."""

    @property
    def ratio(self) -> float:
        """Seconds for each iteration."""
        return self.seconds / self.iterations


def critical_cycle(graph: EventGraph) -> Cycle:
    """A cycle of the largest ratio: seconds between the ends of two iterations, in the long run.

    For a candidate ratio r every node gets as potential the longest path to it, where an arc counts
    the seconds of its source, less r for each iteration that it crosses. If there are such
    potentials, no cycle has a larger ratio: around one their differences sum up to zero, so its
    seconds are at most r times its iterations. If there are none, arcs that raise potentials for
    ever form a cycle of a larger ratio, which is the next candidate.

    Of several such cycles it is the same for the same graph.
    """
    end = len(graph.tasks)
    best = Cycle(0.0, 1, (Link(end, 1, Cause.DRIVER),))
    potentials = [0.0] * (end + 1)
    while (larger := _larger_cycle(graph, best.ratio, potentials)) and larger.ratio > best.ratio:
        best = larger
    return best


def _larger_cycle(graph: EventGraph, ratio: float, potentials: list[float]) -> Cycle | None:
    """A cycle of a larger ratio, or none; potentials may be any and are raised to proper ones."""
    seconds = graph.seconds
    tolerance = RELATIVE_TOLERANCE * sum(seconds)
    parents: list[Arc | None] = [None] * len(potentials)
    for _ in range(len(potentials) + 1):
        is_raised = False
        for node, arcs in enumerate(graph.arcs):
            found, highest = None, potentials[node] + tolerance
            for source, back in arcs:
                reached = potentials[source] + seconds[source] - ratio * back
                if reached > highest:
                    found, highest = (source, back), reached
            if found is not None:
                is_raised, parents[node], potentials[node] = True, found, highest
        if not is_raised:
            return None
        if (node_on_cycle := _on_cycle(parents)) is not None:
            return _cycle_through(node_on_cycle, parents, graph)
    raise AssertionError("potentials rise for ever only along a cycle")


def _on_cycle(parents: Sequence[Arc | None]) -> int | None:
    """A node that is, through others, its own parent; None where there is none."""
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


def _cycle_through(node: int, parents: Sequence[Arc | None], graph: EventGraph) -> Cycle:
    links: list[Link] = []
    while not links or node != links[0].node:
        arc = parents[node]
        assert arc is not None
        links.append(Link(node, arc[1], graph.arcs[node][arc]))
        node = arc[0]
    links.reverse()
    first = min(range(len(links)), key=lambda index: links[index].node)
    ordered = (*links[first:], *links[:first])
    seconds = sum(graph.seconds[link.node] for link in ordered)
    return Cycle(seconds, sum(link.iterations for link in ordered), ordered)
