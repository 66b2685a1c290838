"""Several iterations of a step on exclusive devices: when which task runs, how long a step takes in
the long run, who is idle, and what to make faster. Pure and deterministic.

The rules are those of the runtime (event_graph.py), so nothing is chosen here: with a given order
of tasks there is one schedule, in which everything starts as soon as it may. With a fixed order
there are no scheduling anomalies: nothing ends earlier when a task takes longer or waits for one
more.

Source: ReaL (arXiv 2406.14088), section 5, estimates a plan by such a simulation of the augmented
graph. There tasks are taken in the order in which they become ready; here in that in which the
driver sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rlhf_planner.simulation.event_graph import (
    PASSES_AHEAD,
    Cause,
    Cycle,
    EventGraph,
    RankGroup,
    Task,
    critical_cycle,
    event_graph,
)


class Span(NamedTuple):
    """When a task of an iteration runs."""

    task: str
    """Its id."""
    iteration: int
    """From 0."""
    begin_seconds: float
    """Since the first iteration was sent."""
    end_seconds: float


class Wait(NamedTuple):
    """What a task starts upon: the last that it waits for."""

    task: str
    iteration: int
    waits_for: str | None
    """The task that ends when it starts. None: the driver, who waits for an earlier pass, or
    nothing."""
    of_iteration: int
    """The iteration of that task, or of that pass."""
    cause: Cause
    """Why it waits for it."""


class CriticalTask(NamedTuple):
    """A task that makes steps as long as they are."""

    task: str
    iteration: int
    """Relative to the first task of the critical path."""
    cause: Cause
    """Why it does not start before the one before it on the path ends; of the first one: before the
    last one does, so many iterations earlier."""


@dataclass(frozen=True)
class GroupUse:
    """What the ranks of a group do in the long run."""

    group: RankGroup
    busy_seconds: float
    """In each step."""
    busy_share: float
    """Of a step's time; 0 to 1."""

    @property
    def idle_share(self) -> float:
        """Of a step's time; 0 to 1."""
        return 1.0 - self.busy_share


@dataclass(frozen=True)
class Simulation:
    """Some iterations of a step, and what goes on for ever after them."""

    graph: EventGraph
    begins: tuple[tuple[float, ...], ...]
    """Of each iteration: seconds at which its tasks begin; last, that at which it is over."""
    ends: tuple[tuple[float, ...], ...]
    """Of each iteration: seconds at which its tasks end; last, that at which it is over."""

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """All tasks, iteration by iteration, in program order."""
        return tuple(
            Span(task.id, iteration, begin, end)
            for iteration, times in enumerate(zip(self.begins, self.ends, strict=True))
            for task, begin, end in zip(self.graph.tasks, *times, strict=False)
        )

    @property
    def makespan_seconds(self) -> float:
        """Until all iterations have ended."""
        return self.ends[-1][-1]

    @cached_property
    def critical_cycle(self) -> Cycle:
        """The tasks that wait for each other for so long that a step cannot be shorter."""
        return critical_cycle(self.graph)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step in the long run: from the end of one to that of the next, on average.

        It is the largest cycle ratio of the graph (cycle_ratio.py), exact but for rounding, and not
        read off late iterations, since no number of them is enough: a chain of tasks that takes a
        little longer than another may show only after any number of steps, and with passes sent
        ahead ends may come in pairs. From the end of iteration 0 to that of iteration n it is n
        times this but for 2 S at most, where S is the seconds of all tasks together: a path through
        many iterations is cycles, with at most this ratio, and a rest in which no task comes twice;
        and whoever follows a cycle of this ratio is behind by one round of it at most.
        """
        return self.critical_cycle.ratio

    @property
    def critical_path(self) -> tuple[CriticalTask, ...]:
        """The tasks of which each waits for the one before, and the first for the last: a step is
        as long as they are together, divided by the iterations that they go through. It would be as
        long if all others took no time. A second less on one of them makes steps shorter, unless
        another such path takes as long.
        """
        tasks, found, iteration = self.graph.tasks, list[CriticalTask](), 0
        links = self.critical_cycle.links
        past_driver = any(link.node == len(tasks) for link in links[-1:])
        for number, (node, back, cause) in enumerate(links):
            iteration += back if number else 0
            if node < len(tasks):
                cause = Cause.DRIVER if past_driver else cause
                found.append(CriticalTask(tasks[node].id, iteration, cause))
            past_driver = node == len(tasks)
        return tuple(found)

    @cached_property
    def uses(self) -> tuple[GroupUse, ...]:
        """Busy and idle time of each group of ranks, in the long run."""
        step = self.step_seconds
        return tuple(
            GroupUse(group, busy, min(1.0, busy / step) if step else 0.0)
            for group in self.graph.groups
            for busy in [self.graph.work(group)]
        )

    @property
    def idle_share(self) -> float:
        """Of the time of all ranks, in the long run; 0 to 1."""
        num_ranks = sum(use.group.num_ranks for use in self.uses)
        idle = sum(use.idle_share * use.group.num_ranks for use in self.uses)
        return idle / num_ranks if num_ranks else 0.0

    def waits(self, iteration: int) -> tuple[Wait, ...]:
        """What each task of an iteration starts upon, in program order; late iterations show what
        goes on for ever. Tasks that start at once are left out."""
        return tuple(
            wait
            for number in range(len(self.graph.tasks))
            if (wait := self._wait(number, iteration)) is not None
        )

    def _wait(self, number: int, iteration: int) -> Wait | None:
        arcs = [(source, back) for source, back in self.graph.arcs[number] if back <= iteration]
        if not arcs:
            return None
        last = max(arcs, key=lambda arc: self.ends[iteration - arc[1]][arc[0]])
        tasks, (source, back) = self.graph.tasks, last
        waits_for = tasks[source].id if source < len(tasks) else None
        cause = self.graph.arcs[number][last]
        return Wait(tasks[number].id, iteration, waits_for, iteration - back, cause)


def simulate(
    tasks: Sequence[Task], iterations: int = 4, passes_ahead: int = PASSES_AHEAD
) -> Simulation:
    """Run a step some times, one iteration after the other and overlapping where it may.

    Args:
        tasks: of one iteration, in program order.
        iterations: how many to run; 1 or more.
        passes_ahead: passes that the driver sends before the one that runs is over; 0
            where a step repeats something (`flow.repeat`).

    Raises:
        FlowError: as `event_graph`.
    """
    graph = event_graph(tasks, passes_ahead)
    seconds = graph.seconds
    begins: list[tuple[float, ...]] = []
    ends: list[tuple[float, ...]] = []
    for iteration in range(iterations):
        begin, end = list[float](), list[float]()
        ends_before = [end, *reversed(ends)]
        for arcs, duration in zip(graph.arcs, seconds, strict=True):
            start = 0.0
            for source, back in arcs:
                if back <= iteration and ends_before[back][source] > start:
                    start = ends_before[back][source]
            begin.append(start)
            end.append(start + duration)
        begins.append(tuple(begin))
        ends.append(tuple(end))
    return Simulation(graph, tuple(begins), tuple(ends))


def step_seconds(tasks: Sequence[Task], passes_ahead: int = PASSES_AHEAD) -> float:
    """Seconds of a step in the long run, as `Simulation.step_seconds`, without its iterations.

    Raises:
        FlowError: as `event_graph`.
    """
    return critical_cycle(event_graph(tasks, passes_ahead)).ratio
