"""When operations run, given the order of each device: everything as soon as it may. Pure.

How early and how late operations can be, and how long a schedule takes at least. Pure.

Micro-batches of a pipeline are alike, so it loses nothing to run them through each stage in their
order: what starts as the n-th forward pass of a stage has behind it n forward passes of the stage
before, whichever micro-batches they are of, and the same goes for backward passes. So everything
here, and every order that is searched, has them in their order.

Pipelines one after the other, each with one forward and one backward pass in turn. Pure.
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
    """Orders that come to an end, and when each operation ends."""

    workload: Workload
    orders: Orders
    ends: tuple[float, ...]
    """Seconds from the start of the first operation, of each operation."""

    @property
    def begins(self) -> tuple[float, ...]:
        """Seconds, of each operation."""
        return tuple(
            end - seconds for end, seconds in zip(self.ends, self.workload.seconds, strict=True)
        )

    @cached_property
    def makespan_seconds(self) -> float:
        """Until the last operation has ended."""
        return max(self.ends)

    @property
    def bubble_share(self) -> float:
        """Share of the time of all devices in which they stand still; 0 to 1."""
        return 1.0 - sum(self.workload.seconds) / (
            self.makespan_seconds * self.workload.num_devices
        )

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Of each device: the most activations that it holds at once."""
        return tuple(peak_bytes(self.workload, order) for order in self.orders)


def schedule_of(workload: Workload, orders: Sequence[Sequence[int]]) -> Schedule | None:
    """The schedule of some orders; None if devices wait for each other for ever.

    Args:
        workload: all operations.
        orders: of each device, all of its operations.
    """
    ends = end_times(workload, orders)
    return None if ends is None else Schedule(workload, tuple(map(tuple, orders)), tuple(ends))


def end_times(workload: Workload, orders: Sequence[Sequence[int]]) -> list[float] | None:
    """Seconds at which each operation ends; None if devices wait for each other for ever."""
    count = len(workload.seconds)
    return _run(workload, orders, [-1.0] * count, [0] * len(orders), [0.0] * count, INFINITY)


def changed_end_times(
    workload: Workload,
    orders: Sequence[Sequence[int]],
    ends: Sequence[float],
    since: float,
    tails: Sequence[float],
    most: float,
) -> list[float] | None:
    """Like `end_times`, after a change to orders whose times are known.

    Args:
        workload: all operations.
        orders: after the change.
        ends: seconds, before the change.
        since: nothing that began earlier than at this time was moved, or moved before anything.
        tails: seconds that follow each operation at least.
        most: None is returned where the last operation ends later.
    """
    seconds = workload.seconds
    found, done = list(ends), []
    for order in orders:
        kept = bisect_left(order, since, key=lambda number: ends[number] - seconds[number])
        done.append(kept)
        for number in order[kept:]:
            found[number] = -1.0
    return _run(workload, orders, found, done, tails, most)


def _run(
    workload: Workload,
    orders: Sequence[Sequence[int]],
    ends: list[float],
    done: list[int],
    tails: Sequence[float],
    most: float,
) -> list[float] | None:
    """Ends of all operations; `ends` has those of the first `done` ones of each device, and -1 of
    the others."""
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
            if now + tails[number] > most:
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
    """The most activations that a device holds at once: whatever the times are, as they are kept
    from a forward pass on and gone after a backward pass."""
    held = peak = 0
    for number in order:
        held += workload.held_bytes[number]
        peak = max(peak, held)
    return peak


def heads(workload: Workload) -> list[float]:
    """Of each operation: seconds before it that nothing can avoid, from the start on. Those of its
    micro-batch so far, and of the micro-batches before it in the same stage and direction."""
    found = [0.0] * len(workload.seconds)
    for number, earlier in enumerate(_in_stage_before(workload)):
        for source in (workload.before[number], earlier):
            if source >= 0:
                found[number] = max(found[number], found[source] + workload.seconds[source])
    return found


def tails(workload: Workload) -> list[float]:
    """Of each operation: seconds after it that nothing can avoid, to the end."""
    found = [0.0] * len(workload.seconds)
    earlier = _in_stage_before(workload)
    for number in reversed(range(len(found))):
        after_source = found[number] + workload.seconds[number]
        for source in (workload.before[number], earlier[number]):
            if source >= 0:
                found[source] = max(found[source], after_source)
    return found


def _in_stage_before(workload: Workload) -> list[int]:
    """Of each operation: that of the micro-batch before, in the same stage and direction; -1 for
    none. It has a smaller number."""
    return [
        -1 if op.micro_batch == 0 else number - 2 * workload.pipelines[op.pipeline].num_stages
        for number, op in enumerate(workload.operations)
    ]


def lower_bound(workload: Workload) -> float:
    """Seconds that any schedule takes at least, with or without a limit on activations.

    For each device alone, as if all others could do any number of things at once: when its
    operations come in no earlier than their heads, and each is followed by its tail, then working
    always on the one with the longest tail, preemptively, is best. That counts a device's work, the
    ramps before and after it, and gaps in between which it has nothing to fill with.

    Source: Jackson's preemptive schedule, as in Carlier, The one-machine sequencing problem (1982).
    RLHFuse's published bound counts the work and the shortest ramps.
    """
    early, late = heads(workload), tails(workload)
    jobs: list[list[tuple[float, float, float]]] = [[] for _ in range(workload.num_devices)]
    for number, device in enumerate(workload.devices):
        jobs[device].append((early[number], workload.seconds[number], late[number]))
    return max(one_device_bound(job) for job in jobs)


def one_device_bound(jobs: Iterable[tuple[float, float, float]]) -> float:
    """Seconds until all of some jobs have ended and what follows them, on one device, preemptively.

    Args:
        jobs: of each when it comes, how long it takes, and how much follows it, in seconds.
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
    """The order of a stage under 1F1B: micro-batches, and whether backward.

    A stage does as many forward passes as there are stages after it, then one forward and one
    backward pass in turn, then the backward passes that are left. So it holds the activations of at
    most min(micro-batches, stages - stage) micro-batches. Where all p stages take f and b seconds,
    m micro-batches take (m + p - 1) (f + b), of which each stage stands still for (p - 1) (f + b).

    Under a limit on activations a stage does fewer forward passes at first, and no stage after it
    more than it does: that stage would wait for micro-batches that it never gets.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM (arXiv 2104.04473), section 2.2 (PipeDream-Flush).

    Args:
        pipeline: of which.
        stage: from 0 on.
        limit: bytes of activations on each device, enough for one micro-batch. None: any number.
    """
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
    """On each device one pipeline after the other; one begins where the one before has ended on all
    of its devices, or earlier.

    Args:
        workload: all operations.
        limit: bytes of activations on each device, as for `one_forward_one_backward`.
        is_last_first: whether the last pipeline goes first.
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
    """A pipeline with nothing beside it, under 1F1B."""
    workload = Workload((pipeline,))
    schedule = schedule_of(workload, serial_orders(workload, limit))
    assert schedule is not None
    return schedule


def serial_seconds(pipelines: Sequence[Pipeline], limit: int | None = None) -> float:
    """Seconds of pipelines under 1F1B, each of which begins when those before it that share a
    device with it have ended on all of theirs."""
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
