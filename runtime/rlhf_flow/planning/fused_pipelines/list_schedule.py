"""A schedule in one go: whenever a device is free, it takes what matters most of what is there.
Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_flow.planning.fused_pipelines.activations import ActivationLimit, Limits
from rlhf_flow.planning.fused_pipelines.pipeline import Operation, Orders, Workload

Priorities = Sequence[tuple[float, ...]]
"""Of each operation; the largest goes first."""


def list_orders(
    workload: Workload, priorities: Priorities, limits: Limits, is_patient: bool = False
) -> Orders:
    """The orders of devices each of which, whenever it is free, starts the operation of the highest
    priority that is ready and that the limits let start.

    Source: Graham, Bounds on multiprocessing timing anomalies (1969). With patience: active
    schedules as in Giffler and Thompson, Algorithms for solving production-scheduling problems
    (1960), as far as it is known what comes.

    Args:
        workload: all operations.
        priorities: of each operation.
        limits: on activations.
        is_patient: whether a device waits rather than start what would still run when something of
            a higher priority becomes ready, if that is known: what comes before it is running.
    """
    return _ListSchedule(workload, priorities, limits, is_patient).run()


@dataclass
class _Line:
    """The operations of a stage in one direction, which run in the order of their micro-batches."""

    numbers: tuple[int, ...]
    started: int = 0
    ready: int = 0
    """How many may run, started ones included, since those before them have ended."""
    arrival: float | None = None
    """Seconds at which the next one becomes ready, while what comes before it is running."""

    @property
    def next(self) -> int:
        """The number of the operation that starts next."""
        return self.numbers[self.started]


class _ListSchedule:
    """What has been started so far, and what is running."""

    def __init__(
        self, workload: Workload, priorities: Priorities, limits: Limits, is_patient: bool
    ) -> None:
        self._workload, self._priorities, self._is_patient = workload, priorities, is_patient
        self._activations = ActivationLimit(workload, limits)
        self._lines = _lines(workload)
        self._on_device: list[list[_Line]] = [[] for _ in range(workload.num_devices)]
        for line in self._lines.values():
            self._on_device[workload.devices[line.numbers[0]]].append(line)
        self._orders: list[list[int]] = [[] for _ in self._on_device]
        self._running: list[tuple[float, int]] = []
        """When operations end, and which, as a heap."""
        self._idle = set(range(len(self._orders)))
        self._now = 0.0

    def run(self) -> Orders:
        """Start everything. Something is always running until then: `ActivationLimit` sees to
        that, and a device waits only for what comes after something that is running."""
        while True:
            for device in sorted(self._idle):
                line = self._next_line(self._on_device[device])
                if line is not None:
                    self._start(device, line)
            if not self._running:
                return tuple(map(tuple, self._orders))
            self._now = self._running[0][0]
            while self._running and self._running[0][0] <= self._now:
                self._end(heapq.heappop(self._running)[1])

    def _next_line(self, lines: Sequence[_Line]) -> _Line | None:
        """Of which a device that is free starts an operation; None if it waits."""
        priorities, seconds = self._priorities, self._workload.seconds
        ready = [line for line in lines if line.started < line.ready]
        ready.sort(key=lambda line: priorities[line.next], reverse=True)
        for line in ready:
            end = self._now + seconds[line.next]
            if self._is_patient and self._comes_before(priorities[line.next], end, lines):
                continue
            if self._activations.may_start(self._workload.operations[line.next]):
                return line
        return None

    def _comes_before(
        self, priority: tuple[float, ...], end: float, lines: Sequence[_Line]
    ) -> bool:
        """Whether something of a higher priority will be ready before some time."""
        return any(
            line.started == line.ready
            and line.arrival is not None
            and line.arrival < end
            and self._priorities[line.next] > priority
            for line in lines
        )

    def _start(self, device: int, line: _Line) -> None:
        number = line.next
        end = self._now + self._workload.seconds[number]
        self._activations.start(self._workload.operations[number])
        line.started += 1
        self._orders[device].append(number)
        self._idle.remove(device)
        heapq.heappush(self._running, (end, number))
        if (following := self._following(number)) is not None:
            following.arrival = end

    def _end(self, number: int) -> None:
        self._idle.add(self._workload.devices[number])
        self._activations.end(self._workload.operations[number])
        if (following := self._following(number)) is not None:
            following.ready += 1
            following.arrival = None

    def _following(self, number: int) -> _Line | None:
        """That of the operation which comes after another one of its micro-batch."""
        after = self._workload.after[number]
        return None if after < 0 else self._lines[_line_of(self._workload.operations[after])]


def _lines(workload: Workload) -> dict[tuple[int, int, bool], _Line]:
    numbers: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, op in enumerate(workload.operations):
        numbers[_line_of(op)].append(number)
    lines = {key: _Line(tuple(found)) for key, found in numbers.items()}
    for index, pipeline in enumerate(workload.pipelines):
        lines[index, 0, False].ready = pipeline.micro_batches
    return lines


def _line_of(op: Operation) -> tuple[int, int, bool]:
    return op.pipeline, op.stage, op.is_backward
