"""Times of operations for fixed orders of devices, lower bounds of schedules, and pipelines one
after
the other under 1F1B. Everything starts as early as possible. Pure.

Micro-batches of a pipeline are equal, so nothing is lost if each stage runs them in their order:
the n-th forward pass of a stage follows n forward passes of the stage before, whichever
micro-batches they belong to, and likewise backward. So all orders here keep micro-batches in order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlhf_planner.pipelines.pipeline import Operation, Orders, Pipeline, Workload

INFINITY = float("inf")


@dataclass(frozen=True)
class Schedule:
    """Orders without a deadlock, and the end of each operation."""

    workload: Workload
    orders: Orders
    ends: tuple[float, ...]
    """Per operation, seconds from the start of the first one."""

    @property
    def begins(self) -> tuple[float, ...]:
        """Per operation, seconds from the start of the first one."""
        return tuple(
            end - seconds for end, seconds in zip(self.ends, self.workload.seconds, strict=True)
        )

    @cached_property
    def makespan_seconds(self) -> float:
        """Seconds until the last operation has ended."""
        return max(self.ends)

    @property
    def bubble_share(self) -> float:
        """Idle share of the time of all devices; 0 to 1."""
        return 1.0 - sum(self.workload.seconds) / (
            self.makespan_seconds * self.workload.num_devices
        )

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Per device, the peak of activations."""
        return tuple(peak_bytes(self.workload, order) for order in self.orders)


def schedule_of(workload: Workload, orders: Sequence[Sequence[int]]) -> Schedule | None:
    """The schedule of some orders; None for a deadlock.

    Args:
        workload: all operations.
        orders: of each device, all of its operations.
    """
    ends = end_times(workload, orders)
    return None if ends is None else Schedule(workload, tuple(map(tuple, orders)), tuple(ends))


def end_times(workload: Workload, orders: Sequence[Sequence[int]]) -> list[float] | None:
    """Seconds at which each operation ends; None for a deadlock."""
    count = len(workload.seconds)
    return _run(workload, orders, [-1.0] * count, [0] * len(orders), [0.0] * count, INFINITY)


def changed_end_times(
    workload: Workload,
    orders: Sequence[Sequence[int]],
    ends: Sequence[float],
    since: float,
    tails: Sequence[float],
    max_makespan: float,
) -> list[float] | None:
    """End times after a change to orders with known times. None for a deadlock, or above the limit.

    Args:
        workload: all operations.
        orders: after the change.
        ends: seconds, before the change.
        since: operations that began earlier have neither moved nor got a moved one before them.
        tails: lower bound of the seconds that follow each operation.
        max_makespan: limit of the last end.
    """
    seconds = workload.seconds
    new_ends, done = list(ends), []
    for order in orders:
        kept = bisect_left(order, since, key=lambda number: ends[number] - seconds[number])
        done.append(kept)
        for number in order[kept:]:
            new_ends[number] = -1.0
    return _run(workload, orders, new_ends, done, tails, max_makespan)


def _run(
    workload: Workload,
    orders: Sequence[Sequence[int]],
    ends: list[float],
    done: list[int],
    tails: Sequence[float],
    max_makespan: float,
) -> list[float] | None:
    """Ends of all operations, from those of the first `done` of each device; -1 marks others."""
    seconds, before = workload.seconds, workload.before
    after, devices = workload.after, workload.devices
    free = [
        ends[order[count - 1]] if count else 0.0 for order, count in zip(orders, done, strict=True)
    ]
    left = sum(map(len, orders)) - sum(done)
    active = list(range(len(orders)))
    while active:
        device = active.pop()
        order, at, now = orders[device], done[device], free[device]
        for number in order[at:]:
            source = before[number]
            if source >= 0:
                ready = ends[source]
                if ready < 0.0:
                    break
                now = max(now, ready)
            now += seconds[number]
            if now + tails[number] > max_makespan:
                return None
            ends[number] = now
            at += 1
            following = after[number]
            if following >= 0:
                other = devices[following]
                if other != device and orders[other][done[other]] == following:
                    active.append(other)
        left -= at - done[device]
        done[device], free[device] = at, now
    return None if left else ends


def peak_bytes(workload: Workload, order: Sequence[int]) -> int:
    """Peak of the activations of a device; it depends on the order only, not on times."""
    resident = peak = 0
    for number in order:
        resident += workload.activation_changes[number]
        peak = max(peak, resident)
    return peak


def heads(workload: Workload) -> list[float]:
    """Lower bound of the seconds before each operation: those of its micro-batch so far, and of
    earlier micro-batches in the same stage and direction."""
    seconds_before = [0.0] * len(workload.seconds)
    for number, earlier in enumerate(_in_stage_before(workload)):
        for source in (workload.before[number], earlier):
            if source >= 0:
                seconds_before[number] = max(
                    seconds_before[number], seconds_before[source] + workload.seconds[source]
                )
    return seconds_before


def tails(workload: Workload) -> list[float]:
    """Lower bound of the seconds after each operation."""
    seconds_after = [0.0] * len(workload.seconds)
    earlier = _in_stage_before(workload)
    for number in reversed(range(len(seconds_after))):
        after_source = seconds_after[number] + workload.seconds[number]
        for source in (workload.before[number], earlier[number]):
            if source >= 0:
                seconds_after[source] = max(seconds_after[source], after_source)
    return seconds_after


def _in_stage_before(workload: Workload) -> list[int]:
    """Per operation, that of the micro-batch before in its stage and direction; -1 for none."""
    return [
        -1 if op.micro_batch == 0 else number - 2 * workload.pipelines[op.pipeline].num_stages
        for number, op in enumerate(workload.operations)
    ]


def lower_bound(workload: Workload) -> float:
    """Lower bound of the seconds of any schedule, with or without a limit on activations.

    It is the maximum over devices of a one-machine problem: operations arrive no earlier than their
    heads, each is followed by its tail, and the longest tail goes first, preemptively. That counts
    a
    device's work, the ramps before and after it, and gaps that nothing can fill.

    Source: Jackson's preemptive schedule, as in Carlier, The one-machine sequencing problem (1982).
    RLHFuse's published bound counts the work and the shortest ramps.
    """
    early, late = heads(workload), tails(workload)
    jobs: list[list[tuple[float, float, float]]] = [[] for _ in range(workload.num_devices)]
    for number, device in enumerate(workload.devices):
        jobs[device].append((early[number], workload.seconds[number], late[number]))
    return max(one_device_bound(job) for job in jobs)


def one_device_bound(jobs: Iterable[tuple[float, float, float]]) -> float:
    """Seconds until some jobs and their tails have ended, on one device, preemptively.

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
            heapq.heappush(waiting, [-coming[index][2], coming[index][1]])
            index += 1
        following = coming[index][0] if index < len(coming) else INFINITY
        tail, left = waiting[0]
        if now + left <= following:
            now += left
            latest = max(latest, now - tail)
            heapq.heappop(waiting)
        else:
            waiting[0][1] -= following - now
            now = following
    return latest


def one_forward_one_backward(
    pipeline: Pipeline, stage: int, limit: int | None = None
) -> list[tuple[int, bool]]:
    """The order of a stage under 1F1B: micro-batches, and True for a backward pass.

    A stage runs as many forward passes as there are stages after it, then one forward and one
    backward
    pass in turn, then the remaining backward passes. So it keeps activations of at most
    min(micro-batches, stages - stage) micro-batches. If all p stages take f and b seconds, m
    micro-batches take (m + p - 1) (f + b), of which each stage is idle for (p - 1) (f + b).

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM (arXiv 2104.04473), section 2.2 (PipeDream-Flush).

    Args:
        pipeline: the pipeline.
        stage: from 0.
        limit: bytes of activations on each device, enough for one micro-batch. None: unlimited.
    """
    # Under a limit a stage runs fewer forward passes at first, and no later stage more than it:
    # that stage would wait for micro-batches that never arrive.
    count = pipeline.micro_batches
    ahead = min(count, pipeline.num_stages - 1 - stage)
    if limit is not None:
        for size in pipeline.activation_bytes[: stage + 1]:
            ahead = min(ahead, limit // size - 1) if size else ahead
    order = [(number, False) for number in range(ahead)]
    for number in range(count - ahead):
        order += [(ahead + number, False), (number, True)]
    return order + [(number, True) for number in range(count - ahead, count)]


def serial_orders(
    workload: Workload, limit: int | None = None, is_last_first: bool = False
) -> Orders:
    """The pipelines one after the other on each device.

    Args:
        workload: all operations.
        limit: bytes of activations on each device, as for `one_forward_one_backward`.
        is_last_first: True to start with the last pipeline.
    """
    orders: list[list[int]] = [[] for _ in range(workload.num_devices)]
    indices = range(len(workload.pipelines))
    for index in reversed(indices) if is_last_first else indices:
        pipeline = workload.pipelines[index]
        for stage, device in enumerate(pipeline.devices):
            orders[device] += [
                workload.number(Operation(index, stage, micro_batch, is_backward))
                for micro_batch, is_backward in one_forward_one_backward(pipeline, stage, limit)
            ]
    return tuple(map(tuple, orders))


def schedule_alone(pipeline: Pipeline, limit: int | None = None) -> Schedule:
    """A single pipeline under 1F1B."""
    workload = Workload((pipeline,))
    schedule = schedule_of(workload, serial_orders(workload, limit))
    assert schedule is not None
    return schedule


def serial_seconds(pipelines: Sequence[Pipeline], limit: int | None = None) -> float:
    """Seconds of pipelines under 1F1B, each of which begins when those before it on its devices
    have ended."""
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
