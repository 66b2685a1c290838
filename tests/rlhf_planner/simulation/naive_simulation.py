"""A step on ranks, second by second: each rank has its own queue, as the runtime's have. The oracle
of the planner's simulation; times are whole seconds."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_planner.simulation.event_graph import Task

Run = tuple[int, str]
"""A task of an iteration."""


class NaiveRun:
    """Passes of a step, sent by a driver to ranks that each take one call after the other."""

    def __init__(self, tasks: Sequence[Task], iterations: int, passes_ahead: int) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._passes = [[(number, task.id) for task in tasks] for number in range(iterations)]
        self._passes_ahead = passes_ahead
        self._sent: list[Run] = []
        self._queues: dict[tuple[str, int] | str, list[Run]] = {}
        self._ended: set[Run] = set()
        self.begins: dict[Run, int] = {}
        now = 0
        while len(self._ended) < iterations * len(tasks):
            while self._advance(now):
                pass
            now += 1

    def _advance(self, now: int) -> bool:
        """Whether something changed at a time."""
        before = (len(self._sent), len(self.begins), len(self._ended))
        self._send()
        for run in self._sent:
            if run not in self.begins and self._may_start(run):
                self.begins[run] = now
        for run, begin in self.begins.items():
            if run not in self._ended and begin + self._tasks[run[1]].seconds == now:
                self._ended.add(run)
                for place in requested_placement(self._tasks[run[1]]):
                    self._queues[place].remove(run)
        return before != (len(self._sent), len(self.begins), len(self._ended))

    def _send(self) -> None:
        """The passes that the driver may send: it waits for each, in order, so many later."""
        num_over = 0
        while num_over < len(self._passes) and self._ended.issuperset(self._passes[num_over]):
            num_over += 1
        for sent in self._passes[: num_over + 1 + self._passes_ahead]:
            for run in sent:
                if run not in self._sent:
                    self._sent.append(run)
                    for place in requested_placement(self._tasks[run[1]]):
                        self._queues.setdefault(place, []).append(run)

    def _may_start(self, run: Run) -> bool:
        iteration, name = run
        task = self._tasks[name]
        inputs = {(iteration, source) for source in task.after}
        if iteration > 0:
            inputs |= {(iteration - 1, source) for source in task.after_previous}
        is_next = all(self._queues[place][0] == run for place in requested_placement(task))
        return is_next and self._ended.issuperset(inputs)


def requested_placement(task: Task) -> set[tuple[str, int] | str]:
    """All that a task has to itself: single ranks, and its resource."""
    ranks: set[tuple[str, int] | str] = {
        (pool, rank) for pool, ranks in task.ranks for rank in ranks
    }
    return ranks if task.resource is None else ranks | {task.resource}
