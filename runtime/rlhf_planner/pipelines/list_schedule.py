"""List schedules: whenever a device is free, it starts the ready operation of the highest priority,
under a limit on activations without deadlock. Pure except for its own counts.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_flow.errors import DoesNotFit
from rlhf_planner.pipelines.pipeline import Operation, Orders, Workload


def check_limit(workload: Workload, limit: int) -> None:
    """Refuse a limit under which no schedule ends.

    Raises:
        DoesNotFit: less than one micro-batch needs on some device.
    """
    for pipeline in workload.pipelines:
        for stage, size in enumerate(pipeline.activation_bytes):
            if size > limit:
                raise DoesNotFit(
                    f"activations of one micro-batch do not fit: got {size} bytes for stage "
                    f"{stage} of {pipeline.name}, allowed {limit}; make micro-batches smaller, or "
                    "recompute activations"
                )


@dataclass(frozen=True)
class Limits:
    """Limits on forward passes."""

    activation_bytes: int | None = None
    """Limit on each device, as `check_limit` allows. None: unlimited."""
    ahead: tuple[int | None, ...] = ()
    """Per pipeline, an offset to 1F1B's limit of forward passes ahead of backward passes (the
    number of stages up to the last); the sum is at least 1. None: unlimited, as for all pipelines
    if empty."""


class ActivationLimit:
    """Counts activations on devices, and decides which forward passes may start.

    A forward pass may start if, after it, all running micro-batches can still end within the limit,
    one
    after the other if necessary.

    Source: Dijkstra's banker's algorithm (EWD 623). A micro-batch's claim is its activations on all
    stages; it releases them after it has had all of them.
    """

    # Under a plain limit two pipelines in opposite directions could fill each other's devices and
    # deadlock. The oldest micro-batch of a pipeline is never blocked for being ahead.

    def __init__(self, workload: Workload, limits: Limits) -> None:
        self._workload = workload
        self._limit = limits.activation_bytes
        self._ahead = limits.ahead or (None,) * len(workload.pipelines)
        self._used_bytes = [0] * workload.num_devices
        self._started = [[0] * pipeline.num_stages for pipeline in workload.pipelines]
        """Started forward passes, per pipeline and stage."""
        self._ended = [[0] * pipeline.num_stages for pipeline in workload.pipelines]
        """Ended backward passes, per pipeline and stage."""

    def may_start(self, op: Operation) -> bool:
        """True if an operation may start; backward passes always may."""
        if op.is_backward:
            return True
        pipeline, ahead = self._workload.pipelines[op.pipeline], self._ahead[op.pipeline]
        started, ended = self._started[op.pipeline], self._ended[op.pipeline]
        if ahead is not None:
            max_ahead = max(1, pipeline.num_stages - op.stage + ahead)
            if started[op.stage] - ended[op.stage] >= max_ahead:
                return False
        if self._limit is None:
            return True
        device, size = pipeline.devices[op.stage], pipeline.activation_bytes[op.stage]
        if self._used_bytes[device] + size > self._limit:
            return False
        started[op.stage] += 1
        is_safe = self._all_can_end(self._limit)
        started[op.stage] -= 1
        return is_safe

    def start(self, op: Operation) -> None:
        """Record the start of an operation."""
        if not op.is_backward:
            self._started[op.pipeline][op.stage] += 1
            self._add(op, 1)

    def end(self, op: Operation) -> None:
        """Record the end of an operation."""
        if op.is_backward:
            self._ended[op.pipeline][op.stage] += 1
            self._add(op, -1)

    def _add(self, op: Operation, times: int) -> None:
        pipeline = self._workload.pipelines[op.pipeline]
        self._used_bytes[pipeline.devices[op.stage]] += times * pipeline.activation_bytes[op.stage]

    def _all_can_end(self, limit: int) -> bool:
        """True if all micro-batches in their forward pass can end, the oldest of each pipeline
        first."""
        # Micro-batches in their backward pass need no more memory.
        used = self._forward_bytes()
        waiting = [(started[-1], started[0]) for started in self._started]
        is_changed = True
        while is_changed:
            is_changed = False
            for index, (oldest, newest) in enumerate(waiting):
                while oldest < newest and self._can_end(index, oldest, used, limit):
                    oldest, is_changed = oldest + 1, True
                waiting[index] = oldest, newest
        return all(oldest == newest for oldest, newest in waiting)

    def _forward_bytes(self) -> list[int]:
        """Bytes on each device of micro-batches in their forward pass."""
        used = [0] * len(self._used_bytes)
        for pipeline, started in zip(self._workload.pipelines, self._started, strict=True):
            for device, size, count in zip(
                pipeline.devices, pipeline.activation_bytes, started, strict=True
            ):
                used[device] += (count - started[-1]) * size
        return used

    def _can_end(self, index: int, micro_batch: int, used: list[int], limit: int) -> bool:
        """True if a micro-batch fits on all remaining stages; then its bytes are subtracted from
        `used`."""
        pipeline, started = self._workload.pipelines[index], self._started[index]
        devices, sizes = pipeline.devices, pipeline.activation_bytes
        stage = len(devices) - 1
        while started[stage] <= micro_batch:
            if used[devices[stage]] + sizes[stage] > limit:
                return False
            stage -= 1
        for entered in range(stage + 1):
            used[devices[entered]] -= sizes[entered]
        return True


Priorities = Sequence[tuple[float, ...]]
"""Priority of each operation; the highest goes first."""


def list_orders(
    workload: Workload, priorities: Priorities, limits: Limits, is_patient: bool = False
) -> Orders:
    """The orders of a list schedule.

    Source: Graham, Bounds on multiprocessing timing anomalies (1969). With patience: active
    schedules as
    in Giffler and Thompson, Algorithms for solving production-scheduling problems (1960), as far as
    arrivals are known.

    Args:
        workload: all operations.
        priorities: of each operation.
        limits: on activations.
        is_patient: if a device waits rather than start what would still run when an operation of a
            higher priority arrives, if that time is known: its predecessor is running.
    """
    return _ListSchedule(workload, priorities, limits, is_patient).run()


@dataclass
class _Line:
    """The operations of a stage in one direction, which run in the order of their micro-batches."""

    numbers: tuple[int, ...]
    started: int = 0
    ready: int = 0
    """Operations that may run, started ones included: their predecessors have ended."""
    arrival: float | None = None
    """Seconds at which the next one becomes ready, while its predecessor is running."""

    @property
    def next(self) -> int:
        """The operation that starts next."""
        return self.numbers[self.started]


class _ListSchedule:
    """Started and running operations."""

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
        """Heap of (end, operation)."""
        self._idle = set(range(len(self._orders)))
        self._now = 0.0

    def run(self) -> Orders:
        """Start all operations."""
        # Something is always running until then: `ActivationLimit` prevents deadlocks, and a device
        # waits only for successors of running operations.
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
        """The line whose operation a free device starts; None if it waits."""
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
        """True if an operation of a higher priority will be ready before a time."""
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
        """The line of the next operation of the same micro-batch."""
        after = self._workload.after[number]
        return None if after < 0 else self._lines[_line_of(self._workload.operations[after])]


def _lines(workload: Workload) -> dict[tuple[int, int, bool], _Line]:
    numbers: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, op in enumerate(workload.operations):
        numbers[_line_of(op)].append(number)
    lines = {key: _Line(tuple(line_numbers)) for key, line_numbers in numbers.items()}
    for index, pipeline in enumerate(workload.pipelines):
        lines[index, 0, False].ready = pipeline.micro_batches
    return lines


def _line_of(op: Operation) -> tuple[int, int, bool]:
    return op.pipeline, op.stage, op.is_backward
