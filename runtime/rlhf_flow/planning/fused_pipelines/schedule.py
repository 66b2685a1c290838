"""When operations run, given the order of each device: everything as soon as it may. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rlhf_flow.planning.fused_pipelines.pipeline import Orders, Workload

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
