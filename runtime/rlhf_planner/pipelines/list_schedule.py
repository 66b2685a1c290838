"""List schedules: whenever a device is free, it starts the ready operation of highest priority.

A limit on activations holds forward passes back so that the schedule cannot deadlock. Pure.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_flow.errors import DoesNotFit
from rlhf_planner.pipelines.pipeline import Orders, Workload
from rlhf_sizing.schedules import Operation


def check_limit(workload: Workload, limit: int) -> None:
    """Refuse a limit on activations that no schedule can keep.

    Raises:
        DoesNotFit: a stage needs more for one micro-batch.
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
class ForwardLimits:
    """Limits on the start of forward passes."""

    activation_bytes: int | None = None
    """On each device; must pass `check_limit`. None: unlimited."""
    extra_in_flight: tuple[int | None, ...] = ()
    """Per pipeline: micro-batches that a stage may have in flight, minus those under 1F1B (the
    number of stages from it to the last). The sum counts as 1 if it is lower. None: unlimited.
    Empty: unlimited for all pipelines."""


class ActivationLimiter:
    """Decides which forward passes may start, from the activations that devices keep.

    A forward pass may start if all micro-batches in flight can still finish within the limit, if
    need be one after the other. So one of them can always continue.

    Source: Dijkstra's banker's algorithm (EWD 623). The claim of a micro-batch is its activations
    on all stages; it returns them after it has passed forward through all of them.
    """

    def __init__(self, workload: Workload, limits: ForwardLimits) -> None:
        self._workload = workload
        self._limit = limits.activation_bytes
        self._extra_in_flight = limits.extra_in_flight or (None,) * len(workload.pipelines)
        self._resident_bytes = [0] * workload.num_devices
        # Numbers of forward and backward passes, by pipeline and stage.
        self._started = [[0] * pipeline.num_stages for pipeline in workload.pipelines]
        self._ended = [[0] * pipeline.num_stages for pipeline in workload.pipelines]

    def may_start(self, op: Operation) -> bool:
        """True if an operation may start; always true of backward passes."""
        if op.is_backward:
            return True
        pipeline, extra = self._workload.pipelines[op.pipeline], self._extra_in_flight[op.pipeline]
        started, ended = self._started[op.pipeline], self._ended[op.pipeline]
        if extra is not None:
            # At least 1, or a stage could never start its oldest micro-batch.
            max_in_flight = max(1, pipeline.num_stages - op.stage + extra)
            if started[op.stage] - ended[op.stage] >= max_in_flight:
                return False
        if self._limit is None:
            return True
        device, size = pipeline.devices[op.stage], pipeline.activation_bytes[op.stage]
        if self._resident_bytes[device] + size > self._limit:
            return False
        # The limit alone is not enough: two opposite pipelines could fill each other's devices and
        # then wait for each other for ever.
        started[op.stage] += 1
        is_safe = self._is_safe(self._limit)
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
        self._resident_bytes[pipeline.devices[op.stage]] += (
            times * pipeline.activation_bytes[op.stage]
        )

    def _is_safe(self, limit: int) -> bool:
        """True if all micro-batches on their way forward can finish in some order."""
        # Those that have passed all stages only release memory, so they count as finished. Within
        # a pipeline the oldest goes first: it needs the fewest further stages.
        used = self._forward_bytes()
        waiting = [(started[-1], started[0]) for started in self._started]
        is_changed = True
        while is_changed:
            is_changed = False
            for index, (oldest, newest) in enumerate(waiting):
                while oldest < newest and self._try_finish(index, oldest, used, limit):
                    oldest, is_changed = oldest + 1, True
                waiting[index] = oldest, newest
        return all(oldest == newest for oldest, newest in waiting)

    def _forward_bytes(self) -> list[int]:
        """Bytes per device of micro-batches that have not passed forward through all stages."""
        used = [0] * len(self._resident_bytes)
        for pipeline, started in zip(self._workload.pipelines, self._started, strict=True):
            for device, size, count in zip(
                pipeline.devices, pipeline.activation_bytes, started, strict=True
            ):
                used[device] += (count - started[-1]) * size
        return used

    def _try_finish(self, index: int, micro_batch: int, used: list[int], limit: int) -> bool:
        """Release a micro-batch's bytes from `used` if it fits on all of its remaining stages."""
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
"""Priority per operation; the largest goes first."""


def list_orders(
    workload: Workload,
    priorities: Priorities,
    limits: ForwardLimits,
    is_patient: bool = False,
) -> Orders:
    """Build the orders of a list schedule.

    Whenever a device is free, it starts the ready operation of highest priority that the limits
    allow.

    Source: Graham, Bounds on multiprocessing timing anomalies (1969). With patience: active
    schedules as in Giffler and Thompson, Algorithms for solving production-scheduling problems
    (1960), limited to arrivals that are already certain.

    Args:
        workload: all operations.
        priorities: per operation.
        limits: on forward passes.
        is_patient: let a device idle rather than start an operation that would still run when one
            of higher priority becomes ready. Considers only operations whose predecessor runs.
    """
    return _ListSchedule(workload, priorities, limits, is_patient).run()


@dataclass
class _StageQueue:
    """Operations of a stage in one direction, in the order of their micro-batches."""

    numbers: tuple[int, ...]
    num_started: int = 0
    num_ready: int = 0
    """Operations whose predecessors have ended, including those that have started."""
    arrival: float | None = None
    """Time in seconds at which the next operation becomes ready; None unless its predecessor
    runs."""

    @property
    def next(self) -> int:
        """Number of the operation to start next."""
        return self.numbers[self.num_started]


class _ListSchedule:
    """An event-driven simulation of the devices."""

    def __init__(
        self, workload: Workload, priorities: Priorities, limits: ForwardLimits, is_patient: bool
    ) -> None:
        self._workload, self._priorities, self._is_patient = workload, priorities, is_patient
        self._activations = ActivationLimiter(workload, limits)
        self._queues = _stage_queues(workload)
        self._on_device: list[list[_StageQueue]] = [[] for _ in range(workload.num_devices)]
        for queue in self._queues.values():
            self._on_device[workload.devices[queue.numbers[0]]].append(queue)
        self._orders: list[list[int]] = [[] for _ in self._on_device]
        # A heap of the ends and numbers of running operations.
        self._running: list[tuple[float, int]] = []
        self._idle = set(range(len(self._orders)))
        self._now = 0.0

    def run(self) -> Orders:
        """Run all operations and return their orders."""
        while True:
            for device in sorted(self._idle):
                queue = self._next_queue(self._on_device[device])
                if queue is not None:
                    self._start(device, queue)
            # Nothing runs only when everything is done: `ActivationLimiter` prevents deadlocks, and
            # a patient device waits only for the successor of a running operation.
            if not self._running:
                return tuple(map(tuple, self._orders))
            self._now = self._running[0][0]
            while self._running and self._running[0][0] <= self._now:
                self._end(heapq.heappop(self._running)[1])

    def _next_queue(self, queues: Sequence[_StageQueue]) -> _StageQueue | None:
        """The queue from which a free device starts an operation; None if the device waits."""
        priorities, seconds = self._priorities, self._workload.seconds
        ready = [queue for queue in queues if queue.num_started < queue.num_ready]
        ready.sort(key=lambda queue: priorities[queue.next], reverse=True)
        for queue in ready:
            end = self._now + seconds[queue.next]
            if self._is_patient and self._has_urgent_arrival(priorities[queue.next], end, queues):
                continue
            if self._activations.may_start(self._workload.operations[queue.next]):
                return queue
        return None

    def _has_urgent_arrival(
        self, priority: tuple[float, ...], end: float, queues: Sequence[_StageQueue]
    ) -> bool:
        """True if an operation of higher priority becomes ready before `end`."""
        return any(
            queue.num_started == queue.num_ready
            and queue.arrival is not None
            and queue.arrival < end
            and self._priorities[queue.next] > priority
            for queue in queues
        )

    def _start(self, device: int, queue: _StageQueue) -> None:
        number = queue.next
        end = self._now + self._workload.seconds[number]
        self._activations.start(self._workload.operations[number])
        queue.num_started += 1
        self._orders[device].append(number)
        self._idle.remove(device)
        heapq.heappush(self._running, (end, number))
        if (successor := self._successor_queue(number)) is not None:
            successor.arrival = end

    def _end(self, number: int) -> None:
        self._idle.add(self._workload.devices[number])
        self._activations.end(self._workload.operations[number])
        if (successor := self._successor_queue(number)) is not None:
            successor.num_ready += 1
            successor.arrival = None

    def _successor_queue(self, number: int) -> _StageQueue | None:
        successor = self._workload.successors[number]
        return None if successor < 0 else self._queues[_key(self._workload.operations[successor])]


def _stage_queues(workload: Workload) -> dict[tuple[int, int, bool], _StageQueue]:
    numbers: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, op in enumerate(workload.operations):
        numbers[_key(op)].append(number)
    queues = {key: _StageQueue(tuple(members)) for key, members in numbers.items()}
    # Forward passes through the first stage have no predecessor: all are ready from the start.
    for index, pipeline in enumerate(workload.pipelines):
        queues[index, 0, False].num_ready = pipeline.micro_batches
    return queues


def _key(op: Operation) -> tuple[int, int, bool]:
    return op.pipeline, op.stage, op.is_backward
