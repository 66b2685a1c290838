"""Simulation of several iterations of a step on exclusive devices. Pure and deterministic.

It gives the schedule, the time of a step in the long run, idle time, and the critical path.

The rules are those of the runtime (event_graph.py), so nothing is chosen here: a fixed order of
tasks has one schedule, in which everything starts as early as possible. With a fixed order there
are no scheduling anomalies: nothing ends earlier if a task takes longer or has one more dependency.

Source: ReaL (arXiv 2406.14088), section 5, estimates a plan by such a simulation of the augmented
graph. There tasks run in the order in which they become ready; here in the driver's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rlhf_planner.simulation.event_graph import (
    PASSES_AHEAD,
    AlikeRanks,
    Cause,
    Cycle,
    EventGraph,
    Task,
    critical_cycle,
    event_graph,
)


class Span(NamedTuple):
    """The time of a task in an iteration."""

    task: str
    """Id of the task."""
    iteration: int
    """Iteration, from 0."""
    begin_seconds: float
    """Seconds since the first iteration was sent."""
    end_seconds: float


class Wait(NamedTuple):
    """The dependency that a task starts after: the last of all to end."""

    task: str
    iteration: int
    waits_for: str | None
    """The task that ends when it starts. None: the driver, which waits for an earlier pass, or
    nothing."""
    of_iteration: int
    """The iteration of that task, or of that pass."""
    cause: Cause
    """The kind of dependency."""


class CriticalTask(NamedTuple):
    """A task on the critical path of steps."""

    task: str
    iteration: int
    """Iteration relative to the first task of the path."""
    cause: Cause
    """The kind of dependency on the task before it on the path. The first task depends on the last
    one, of as many iterations earlier as the path crosses."""


@dataclass(frozen=True)
class GroupUse:
    """Busy and idle time of a group's ranks in the long run."""

    group: AlikeRanks
    busy_seconds: float
    """Busy seconds per step."""
    busy_share: float
    """Share of a step's time; 0 to 1."""

    @property
    def idle_share(self) -> float:
        """Share of a step's time; 0 to 1."""
        return 1.0 - self.busy_share


@dataclass(frozen=True)
class Simulation:
    """Some iterations of a step, and the steady state after them."""

    graph: EventGraph
    begins: tuple[tuple[float, ...], ...]
    """Per iteration: seconds at which its tasks begin; the last entry is its end."""
    ends: tuple[tuple[float, ...], ...]
    """Per iteration: seconds at which its tasks end; the last entry is its end."""

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
        """Seconds until all iterations have ended."""
        return self.ends[-1][-1]

    @cached_property
    def critical_cycle(self) -> Cycle:
        """The tasks whose dependency cycle determines the time of a step."""
        return critical_cycle(self.graph)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step in the long run: from the end of one to the end of the next, on
        average.

        n iterations take n x step_seconds, within 2 S, with S the sum of all task durations.
        """
        # This is the largest cycle ratio of the graph, exact but for rounding. Late iterations
        # would not give it: a chain of tasks that is a little longer than another may show only
        # after any number of steps, and with passes sent ahead ends may come in pairs.
        return self.critical_cycle.ratio

    @property
    def critical_path(self) -> tuple[CriticalTask, ...]:
        """The tasks of which each waits for the one before, and the first for the last.

        The time of a step is the sum of their seconds, divided by the iterations that they cross;
        all other tasks could take no time without changing it. Shortening one of these tasks
        shortens steps, unless another such path takes the same time.
        """
        tasks, path, iteration = self.graph.tasks, list[CriticalTask](), 0
        links = self.critical_cycle.links
        # The end of a pass is a node, but no task: the task after it waits for the driver.
        past_driver = any(link.node == len(tasks) for link in links[-1:])
        for number, (node, back, cause) in enumerate(links):
            iteration += back if number else 0
            if node < len(tasks):
                cause = Cause.DRIVER if past_driver else cause
                path.append(CriticalTask(tasks[node].id, iteration, cause))
            past_driver = node == len(tasks)
        return tuple(path)

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
        """Idle share of the time of all ranks, in the long run; 0 to 1."""
        num_ranks = sum(use.group.num_ranks for use in self.uses)
        idle = sum(use.idle_share * use.group.num_ranks for use in self.uses)
        return idle / num_ranks if num_ranks else 0.0

    def waits(self, iteration: int) -> tuple[Wait, ...]:
        """The last dependency of each task of an iteration, in program order; late iterations show
        the steady state. Tasks that start at once are left out."""
        return tuple(
            wait
            for number in range(len(self.graph.tasks))
            if (wait := self._wait(number, iteration)) is not None
        )

    def _wait(self, number: int, iteration: int) -> Wait | None:
        # Dependencies on iterations before the first one do not exist.
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
    """Simulate iterations of a step, overlapping where possible.

    Args:
        tasks: of one iteration, in program order.
        iterations: how many to run; 1 or more.
        passes_ahead: passes that the driver sends before the pass that runs has ended; 0 for a step
            that repeats something (`flow.repeat`).

    Raises:
        FlowError: as `event_graph`.
    """
    graph = event_graph(tasks, passes_ahead)
    seconds = graph.seconds
    begins: list[tuple[float, ...]] = []
    ends: list[tuple[float, ...]] = []
    for iteration in range(iterations):
        begin, end = list[float](), list[float]()
        # By iterations back: first this one, in which earlier tasks have their ends already.
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
