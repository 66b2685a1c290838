"""Times of operations for a fixed order on each device, and lower bounds of any schedule. Pure.

It also has the reference schedule: pipelines one after the other, each under 1F1B.

Every order considered here and in the search keeps the micro-batches of a pipeline in sequence.
This loses nothing, because micro-batches of a pipeline are identical: the n-th forward pass that a
stage starts needs n forward passes of the stage before, whichever micro-batches these belong to.
The same holds for backward passes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlhf_planner.pipelines.pipeline import Orders, Pipeline, Workload
from rlhf_sizing.schedules import Operation, alternate_passes

INFINITY = float("inf")


@dataclass(frozen=True)
class Schedule:
    """Orders without deadlock, and the end of each operation."""

    workload: Workload
    orders: Orders
    ends: tuple[float, ...]
    """End per operation, in seconds from the start of the first one."""

    @property
    def begins(self) -> tuple[float, ...]:
        """Start per operation, in seconds from the start of the first one."""
        return tuple(
            end - seconds for end, seconds in zip(self.ends, self.workload.seconds, strict=True)
        )

    @cached_property
    def makespan_seconds(self) -> float:
        """End of the last operation."""
        return max(self.ends)

    @property
    def bubble_share(self) -> float:
        """Idle share of the time of all devices; 0 to 1."""
        return 1.0 - sum(self.workload.seconds) / (
            self.makespan_seconds * self.workload.num_devices
        )

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak activations of each device."""
        return tuple(peak_bytes(self.workload, order) for order in self.orders)


def build_schedule(workload: Workload, orders: Sequence[Sequence[int]]) -> Schedule | None:
    """Start every operation as early as its device's order allows; None on a deadlock.

    Args:
        workload: all operations.
        orders: all operations of each device.
    """
    ends = end_times(workload, orders)
    return None if ends is None else Schedule(workload, tuple(map(tuple, orders)), tuple(ends))


def end_times(workload: Workload, orders: Sequence[Sequence[int]]) -> list[float] | None:
    """End per operation, in seconds; None if devices wait for each other in a deadlock."""
    count = len(workload.seconds)
    return _run(workload, orders, [-1.0] * count, [0] * len(orders), [0.0] * count, INFINITY)


def update_end_times(
    workload: Workload,
    orders: Sequence[Sequence[int]],
    ends: Sequence[float],
    since: float,
    tails: Sequence[float],
    deadline: float,
) -> list[float] | None:
    """Recompute `end_times` after a change of the orders.

    Args:
        workload: all operations.
        orders: after the change.
        ends: seconds, before the change.
        since: seconds; the change moved no operation that began before this time, and moved none
            to a position before such an operation.
        tails: lower bound of the seconds after each operation, as of `tails`.
        deadline: seconds; return None if the last operation ends later.
    """
    seconds = workload.seconds
    new_ends, done = list(ends), []
    for order in orders:
        # A device runs its order front to back, so everything before `since` is a prefix.
        kept = bisect_left(order, since, key=lambda number: ends[number] - seconds[number])
        done.append(kept)
        for number in order[kept:]:
            new_ends[number] = -1.0
    return _run(workload, orders, new_ends, done, tails, deadline)


def _run(
    workload: Workload,
    orders: Sequence[Sequence[int]],
    ends: list[float],
    done: list[int],
    tails: Sequence[float],
    deadline: float,
) -> list[float] | None:
    """Complete `ends`: it has the ends of the first `done` operations of each device, and -1 for
    the others."""
    seconds, predecessors = workload.seconds, workload.predecessors
    successors, devices = workload.successors, workload.devices
    free = [
        ends[order[count - 1]] if count else 0.0 for order, count in zip(orders, done, strict=True)
    ]
    left = sum(map(len, orders)) - sum(done)
    active = list(range(len(orders)))
    while active:
        device = active.pop()
        order, at, now = orders[device], done[device], free[device]
        for number in order[at:]:
            source = predecessors[number]
            if source >= 0:
                ready = ends[source]
                if ready < 0.0:
                    break
                now = max(now, ready)
            now += seconds[number]
            # The tail already proves that the schedule ends too late: stop early.
            if now + tails[number] > deadline:
                return None
            ends[number] = now
            at += 1
            successor = successors[number]
            if successor >= 0:
                other = devices[successor]
                # Wake only a device that waits for exactly this operation.
                if other != device and orders[other][done[other]] == successor:
                    active.append(other)
        left -= at - done[device]
        done[device], free[device] = at, now
    # Operations that are left on devices without progress are a deadlock.
    return None if left else ends


def peak_bytes(workload: Workload, order: Sequence[int]) -> int:
    """Peak activations of a device that runs its operations in this order."""
    # Independent of times: activations appear with a forward and vanish with a backward pass.
    resident = peak = 0
    for number in order:
        resident += workload.activation_delta_bytes[number]
        peak = max(peak, resident)
    return peak


def heads(workload: Workload) -> list[float]:
    """Per operation: lower bound of the seconds from the start of the schedule to its start."""
    bounds = [0.0] * len(workload.seconds)
    # It follows its own micro-batch's operations, and earlier micro-batches of its stage.
    for number, earlier in enumerate(_previous_in_stage(workload)):
        for source in (workload.predecessors[number], earlier):
            if source >= 0:
                bounds[number] = max(bounds[number], bounds[source] + workload.seconds[source])
    return bounds


def tails(workload: Workload) -> list[float]:
    """Per operation: lower bound of the seconds from its end to the end of the schedule."""
    bounds = [0.0] * len(workload.seconds)
    earlier = _previous_in_stage(workload)
    for number in reversed(range(len(bounds))):
        after_source = bounds[number] + workload.seconds[number]
        for source in (workload.predecessors[number], earlier[number]):
            if source >= 0:
                bounds[source] = max(bounds[source], after_source)
    return bounds


def _previous_in_stage(workload: Workload) -> list[int]:
    """Per operation: that of the previous micro-batch in the same stage and direction, or -1. It
    has a smaller number."""
    return [
        -1 if op.micro_batch == 0 else number - 2 * workload.pipelines[op.pipeline].num_stages
        for number, op in enumerate(workload.operations)
    ]


def lower_bound(workload: Workload) -> float:
    """Lower bound of the makespan in seconds, with or without a limit on activations.

    It bounds each device alone and takes the largest value. A device's bound covers its work, the
    ramps before and after it, and gaps that it has no work for.

    Source: Jackson's preemptive schedule, as in Carlier, The one-machine sequencing problem (1982).
    RLHFuse's published bound counts the work and the shortest ramps.
    """
    # Relaxation: all other devices have unlimited capacity. Operations then arrive at their heads
    # and are followed by their tails; always running the longest tail, with preemption, is optimal.
    early, late = heads(workload), tails(workload)
    jobs: list[list[tuple[float, float, float]]] = [[] for _ in range(workload.num_devices)]
    for number, device in enumerate(workload.devices):
        jobs[device].append((early[number], workload.seconds[number], late[number]))
    return max(one_device_bound(job) for job in jobs)


def one_device_bound(jobs: Iterable[tuple[float, float, float]]) -> float:
    """Seconds until all jobs and their tails have ended on one device, with preemption.

    Args:
        jobs: arrival, duration and tail of each, in seconds.
    """
    coming: Sequence[tuple[float, float, float]] = sorted(jobs)
    waiting: list[list[float]] = []
    now, latest, index = 0.0, 0.0, 0
    while index < len(coming) or waiting:
        if not waiting:
            now = max(now, coming[index][0])
        while index < len(coming) and coming[index][0] <= now:
            # heapq pops the smallest entry: negate the tail to get the longest one first.
            heapq.heappush(waiting, [-coming[index][2], coming[index][1]])
            index += 1
        next_arrival = coming[index][0] if index < len(coming) else INFINITY
        tail, left = waiting[0]
        if now + left <= next_arrival:
            now += left
            latest = max(latest, now - tail)
            heapq.heappop(waiting)
        else:
            # Preempt at the next arrival: it may have a longer tail.
            waiting[0][1] -= next_arrival - now
            now = next_arrival
    return latest


def stage_order(
    pipeline: Pipeline, index: int, stage: int, limit: int | None = None
) -> list[Operation]:
    """The 1F1B order of a stage; under a limit it starts with fewer forward passes.

    Args:
        pipeline: whose stage.
        index: number of the pipeline in its workload.
        stage: index from 0 on.
        limit: bytes of activations on each device, enough for one micro-batch. None: unlimited.
    """
    warm_up = pipeline.num_stages - 1 - stage
    if limit is not None:
        # Earlier stages count too: a stage that warms up with more forward passes than an earlier
        # one would wait for ever for micro-batches that never come.
        for size in pipeline.activation_bytes[: stage + 1]:
            warm_up = min(warm_up, limit // size - 1) if size else warm_up
    return alternate_passes(stage, pipeline.micro_batches, warm_up, index)


def serial_orders(
    workload: Workload, limit: int | None = None, is_reversed: bool = False
) -> Orders:
    """Orders that run one pipeline after the other on each device.

    A pipeline may begin before the previous one has ended on all of its devices.

    Args:
        workload: all operations.
        limit: bytes of activations on each device, as for `stage_order`.
        is_reversed: run the last pipeline first.
    """
    orders: list[list[int]] = [[] for _ in range(workload.num_devices)]
    indices = range(len(workload.pipelines))
    for index in reversed(indices) if is_reversed else indices:
        pipeline = workload.pipelines[index]
        for stage, device in enumerate(pipeline.devices):
            orders[device] += map(workload.number, stage_order(pipeline, index, stage, limit))
    return tuple(map(tuple, orders))


def schedule_alone(pipeline: Pipeline, limit: int | None = None) -> Schedule:
    """Schedule a single pipeline under 1F1B."""
    workload = Workload((pipeline,))
    schedule = build_schedule(workload, serial_orders(workload, limit))
    assert schedule is not None
    return schedule


def serial_seconds(pipelines: Sequence[Pipeline], limit: int | None = None) -> float:
    """Seconds of pipelines under 1F1B, one after the other.

    A pipeline begins when all earlier ones that share a device with it have ended everywhere.
    """
    ends: list[float] = []
    for index, pipeline in enumerate(pipelines):
        begin = max(
            (
                end
                for end, earlier in zip(ends, pipelines[:index], strict=True)
                if {*earlier.devices} & {*pipeline.devices}
            ),
            default=0.0,
        )
        ends.append(begin + schedule_alone(pipeline, limit).makespan_seconds)
    return max(ends)
