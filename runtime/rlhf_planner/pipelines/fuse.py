"""One schedule of training pipelines on the same devices, such as an actor's and a critic's, by
annealing. Pure and deterministic for equal random numbers.

Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: a pipeline's bubbles are filled with another
model's micro-batches, in the opposite direction; simulated annealing of the order on each device,
under a limit on activations. Our additions: list schedules to start from, moves on the critical
path, and a lower bound that proves eleven of the paper's twelve published schedules to be optimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from rlhf_planner.pipelines.list_schedule import check_limit
from rlhf_planner.pipelines.pipeline import Orders, Pipeline, Workload
from rlhf_planner.pipelines.priorities import list_schedules
from rlhf_planner.pipelines.schedule import (
    Schedule,
    changed_end_times,
    end_times,
    lower_bound,
    peak_bytes,
    schedule_of,
    serial_orders,
    serial_seconds,
    tails,
)

FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.005, 0.0002
"""Shares of the makespan: a schedule that is longer by this share is accepted in one of e trials.
"""
RANDOM_SHARE = 0.3
"""Share of moves that are anywhere, instead of on the critical path."""


class Annealing:
    """Simulated annealing by moves of operations among those of their device.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion, anneals by swaps of neighbours and by
    moves, both anywhere.
    """

    # Most moves swap neighbours on the critical path: moves elsewhere cannot make a schedule
    # shorter, and such a swap leads to no deadlock (van Laarhoven, Aarts and Lenstra, Job shop
    # scheduling by simulated annealing, 1992).
    def __init__(
        self, workload: Workload, orders: Orders, limit: int | None, random: Random
    ) -> None:
        """
        Args:
            workload: all operations.
            orders: to start from; within the limit, micro-batches in their order.
            limit: bytes of activations on each device. None: any number.
            random: where randomness comes from.
        """
        ends = end_times(workload, orders)
        assert ends is not None
        self._workload = workload
        self._limit = limit
        self._random = random
        self._tails = tails(workload)
        self._orders = [list(order) for order in orders]
        self._positions = _positions(orders, len(ends))
        self._ends = ends
        self._makespan = max(ends)
        self.best_orders, self.best_seconds = orders, self._makespan

    def run(self, iterations: int, bound: float) -> None:
        """Try moves, up to a number, until a schedule reaches the bound."""
        cooling = (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (1 / max(1, iterations))
        temperature = FIRST_TEMPERATURE * self.best_seconds
        for _ in range(iterations):
            if self.best_seconds <= bound:
                return
            temperature *= cooling
            is_random = self._random.random() < RANDOM_SHARE
            move = self._anywhere() if is_random else self._on_critical_path()
            if move is not None:
                self._try(*move, temperature)

    def _anywhere(self) -> tuple[int, int, int] | None:
        """A device, the position of an operation, and the position that it may move to."""
        device = self._random.randrange(len(self._orders))
        order = self._orders[device]
        if len(order) < 2:
            return None
        position, goal = self._random.randrange(len(order)), self._random.randrange(len(order))
        step = 1 if goal > position else -1
        target = position
        while target != goal and self._may_swap(order[position], order[target + step]):
            target += step
        return None if target == position else (device, position, target)

    def _on_critical_path(self) -> tuple[int, int, int] | None:
        """Two neighbours on one critical path, as a device and two positions."""
        ends, before, devices = self._ends, self._workload.before, self._workload.devices
        number = ends.index(self._makespan)
        swaps: list[tuple[int, int, int]] = []
        while True:
            device, position = devices[number], self._positions[number]
            source = before[number]
            neighbour = self._orders[device][position - 1] if position else -1
            if neighbour < 0 and source < 0:
                return self._random.choice(swaps) if swaps else None
            if neighbour < 0 or (source >= 0 and ends[source] > ends[neighbour]):
                number = source
                continue
            if self._may_swap(neighbour, number):
                swaps.append((device, position - 1, position))
            number = neighbour

    def _may_swap(self, first: int, second: int) -> bool:
        """True if two operations of a device may swap: they are of other micro-batches and of other
        stages or directions."""
        one, other = self._workload.operations[first], self._workload.operations[second]
        if one.pipeline != other.pipeline:
            return True
        return one.micro_batch != other.micro_batch and one.is_backward != other.is_backward

    def _try(self, device: int, position: int, target: int, temperature: float) -> None:
        """Move an operation, and move it back if the limit or chance says so."""
        first = self._orders[device][min(position, target)]
        since = self._ends[first] - self._workload.seconds[first]
        self._move(device, position, target)
        order = self._orders[device]
        if self._limit is None or peak_bytes(self._workload, order) <= self._limit:
            # exp(-longer / temperature) > uniform number, solved for the makespan
            max_makespan = self._makespan - temperature * math.log(1.0 - self._random.random())
            ends = changed_end_times(
                self._workload, self._orders, self._ends, since, self._tails, max_makespan
            )
            if ends is not None:
                self._accept(ends)
                return
        self._move(device, target, position)

    def _accept(self, ends: list[float]) -> None:
        self._ends, self._makespan = ends, max(ends)
        if self._makespan < self.best_seconds:
            self.best_seconds = self._makespan
            self.best_orders = tuple(map(tuple, self._orders))

    def _move(self, device: int, position: int, target: int) -> None:
        order = self._orders[device]
        order.insert(target, order.pop(position))
        for moved in range(min(position, target), max(position, target) + 1):
            self._positions[order[moved]] = moved


def _positions(orders: Sequence[Sequence[int]], count: int) -> list[int]:
    """Position of each operation on its device."""
    positions = [0] * count
    for order in orders:
        for position, number in enumerate(order):
            positions[number] = position
    return positions


ITERATIONS_PER_LIST = 50
"""Moves that a list schedule counts for; it takes about as long as these."""
MIN_LISTS = 4
STARTS = 3
"""Schedules that annealing starts from; moves are divided among them."""
ROUNDING = 1e-9
"""Share of a bound within which a schedule counts as optimal."""


@dataclass(frozen=True)
class FusedSchedule:
    """The best schedule of a search, with numbers to compare it with."""

    schedule: Schedule
    activation_limit_bytes: int
    """Limit of activations on each device."""
    lower_bound_seconds: float
    """Lower bound on all schedules, whatever activations they keep."""
    serial_seconds: float
    """One pipeline after the other, each under 1F1B, within the same limit."""

    @property
    def gap(self) -> float:
        """Relative excess over the bound; 0 or more."""
        return max(0.0, self.schedule.makespan_seconds / self.lower_bound_seconds - 1.0)

    @property
    def is_optimal(self) -> bool:
        """True if the bound proves that no schedule is shorter."""
        return self.gap <= ROUNDING

    @property
    def speed_up(self) -> float:
        """Serial time divided by the schedule's; 1 or more."""
        return self.serial_seconds / self.schedule.makespan_seconds


def fuse_pipelines(
    pipelines: Sequence[Pipeline],
    activation_limit_bytes: int | None = None,
    seed: int = 0,
    iterations: int = 2000,
) -> FusedSchedule:
    """Find a short schedule of pipelines that share devices.

    It is never longer than one pipeline after the other, and deterministic.

    Args:
        pipelines: one or more; for opposite directions see `opposite_pipelines`.
        activation_limit_bytes: on each device; `all_activation_bytes` of a `Workload` sets none.
            None:
            the peak of the pipelines one after the other, under 1F1B.
        seed: of the annealing.
        iterations: limit of moves, after a list schedule for each 50 of them, at least 4; the
            search
            ends at the lower bound.

    Raises:
        DoesNotFit: a limit below the activations of one micro-batch.
    """
    workload = Workload(tuple(pipelines))
    # More iterations need not find a shorter schedule, as annealing is then slower from the start.
    limit_bytes = activation_limit_bytes
    if limit_bytes is None:
        limit_bytes = max(_schedule(workload, serial_orders(workload)).peak_bytes)
    check_limit(workload, limit_bytes)
    limit = limit_bytes if limit_bytes < workload.all_activation_bytes else None
    bound = lower_bound(workload)
    enough = bound * (1.0 + ROUNDING)
    starts = _starts(workload, limit, enough, max(MIN_LISTS, iterations // ITERATIONS_PER_LIST))
    best, random = starts[0], Random(seed)
    for start in starts:
        if best.makespan_seconds <= enough:
            break
        annealing = Annealing(workload, start.orders, limit, random)
        annealing.run(iterations // len(starts), enough)
        if annealing.best_seconds < best.makespan_seconds:
            best = _schedule(workload, annealing.best_orders)
    return FusedSchedule(best, limit_bytes, bound, serial_seconds(pipelines, limit))


def _starts(workload: Workload, limit: int | None, enough: float, lists: int) -> list[Schedule]:
    """Different schedules that need no search, best first; only one if it is short enough."""
    schedules: dict[Orders, Schedule] = {}
    for orders in islice(_start_orders(workload, limit), 2 + lists):
        schedules[orders] = schedule = _schedule(workload, orders)
        if schedule.makespan_seconds <= enough:
            return [schedule]
    ranked = sorted(
        schedules.values(),
        key=lambda schedule_: (schedule_.makespan_seconds, max(schedule_.peak_bytes)),
    )
    return ranked[:STARTS]


def _start_orders(workload: Workload, limit: int | None) -> Iterator[Orders]:
    yield serial_orders(workload, limit)
    yield serial_orders(workload, limit, is_last_first=True)
    yield from list_schedules(workload, limit)


def _schedule(workload: Workload, orders: Orders) -> Schedule:
    schedule = schedule_of(workload, orders)
    assert schedule is not None
    return schedule
