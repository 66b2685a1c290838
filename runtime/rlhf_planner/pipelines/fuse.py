"""Better orders by small changes of given ones. Pure, and the same for the same random numbers.

Training pipelines on the same devices as one schedule, such as an actor's and a critic's.

Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: a pipeline's bubbles are filled with another
model's micro-batches, in the opposite direction; simulated annealing of the order on each device,
under a limit on activations. What is ours: list schedules to start from, moves on the critical
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
"""Shares of the makespan: a schedule that takes so much longer is accepted in one of e trials."""
RANDOM_SHARE = 0.3
"""Of moves that are anywhere, instead of on the critical path."""


class Annealing:
    """Moves operations among those of their device, again and again, and keeps what it is led to:
    always what is no slower, and what is slower the more rarely the slower it is and the later.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion, anneals by swaps of neighbours and by
    moves, both anywhere. Here most swap neighbours on the critical path, as moves elsewhere cannot
    make a schedule shorter, and such a swap leads to no deadlock: van Laarhoven, Aarts and Lenstra,
    Job shop scheduling by simulated annealing (1992).
    """

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
        self._places = _places(orders, len(ends))
        self._ends = ends
        self._makespan = max(ends)
        self.best_orders, self.best_seconds = orders, self._makespan

    def run(self, iterations: int, bound: float) -> None:
        """Try so many moves, or fewer where a schedule reaches the bound."""
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
        """A device, the place of an operation, and the place that it may move to."""
        device = self._random.randrange(len(self._orders))
        order = self._orders[device]
        if len(order) < 2:
            return None
        place, wanted = self._random.randrange(len(order)), self._random.randrange(len(order))
        step = 1 if wanted > place else -1
        target = place
        while target != wanted and self._may_swap(order[place], order[target + step]):
            target += step
        return None if target == place else (device, place, target)

    def _on_critical_path(self) -> tuple[int, int, int] | None:
        """The same, of neighbours on one critical path."""
        ends, before, devices = self._ends, self._workload.before, self._workload.devices
        number = ends.index(self._makespan)
        found: list[tuple[int, int, int]] = []
        while True:
            device, place = devices[number], self._places[number]
            source = before[number]
            neighbour = self._orders[device][place - 1] if place else -1
            if neighbour < 0 and source < 0:
                return self._random.choice(found) if found else None
            if neighbour < 0 or (source >= 0 and ends[source] > ends[neighbour]):
                number = source
                continue
            if self._may_swap(neighbour, number):
                found.append((device, place - 1, place))
            number = neighbour

    def _may_swap(self, first: int, second: int) -> bool:
        """Whether the order of two operations of a device is free: they are of other micro-batches
        and of other stages or directions."""
        one, other = self._workload.operations[first], self._workload.operations[second]
        if one.pipeline != other.pipeline:
            return True
        return one.micro_batch != other.micro_batch and one.is_backward != other.is_backward

    def _try(self, device: int, place: int, target: int, temperature: float) -> None:
        """Move an operation, and move it back if the limit or chance says so."""
        first = self._orders[device][min(place, target)]
        since = self._ends[first] - self._workload.seconds[first]
        self._move(device, place, target)
        order = self._orders[device]
        if self._limit is None or peak_bytes(self._workload, order) <= self._limit:
            # exp(-longer / temperature) > uniform number, solved for the makespan
            most = self._makespan - temperature * math.log(1.0 - self._random.random())
            ends = changed_end_times(
                self._workload, self._orders, self._ends, since, self._tails, most
            )
            if ends is not None:
                self._accept(ends)
                return
        self._move(device, target, place)

    def _accept(self, ends: list[float]) -> None:
        self._ends, self._makespan = ends, max(ends)
        if self._makespan < self.best_seconds:
            self.best_seconds = self._makespan
            self.best_orders = tuple(map(tuple, self._orders))

    def _move(self, device: int, place: int, target: int) -> None:
        order = self._orders[device]
        order.insert(target, order.pop(place))
        for moved in range(min(place, target), max(place, target) + 1):
            self._places[order[moved]] = moved


def _places(orders: Sequence[Sequence[int]], count: int) -> list[int]:
    """Of each operation: its place on its device."""
    places = [0] * count
    for order in orders:
        for place, number in enumerate(order):
            places[number] = place
    return places


ITERATIONS_PER_LIST = 50
"""How many moves a list schedule counts for; it takes the time of about as many."""
LEAST_LISTS = 4
STARTS = 3
"""From how many schedules annealing starts; moves are divided among them."""
ROUNDING = 1e-9
"""Share of a bound by which a schedule may be longer and still be as long."""


@dataclass(frozen=True)
class FusedSchedule:
    """The best schedule that was found, and what to compare it with."""

    schedule: Schedule
    activation_limit_bytes: int
    """That it keeps to, on each device."""
    lower_bound_seconds: float
    """No schedule is shorter, whatever activations it keeps."""
    serial_seconds: float
    """One pipeline after the other, each under 1F1B, within the same limit."""

    @property
    def gap(self) -> float:
        """By what share of the bound the schedule is longer; 0 or more."""
        return max(0.0, self.schedule.makespan_seconds / self.lower_bound_seconds - 1.0)

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no schedule is shorter."""
        return self.gap <= ROUNDING

    @property
    def speed_up(self) -> float:
        """How many times as long the pipelines take one after the other; 1 or more."""
        return self.serial_seconds / self.schedule.makespan_seconds


def fuse_pipelines(
    pipelines: Sequence[Pipeline],
    activation_limit_bytes: int | None = None,
    seed: int = 0,
    iterations: int = 2000,
) -> FusedSchedule:
    """A short schedule of pipelines that share devices.

    It is never longer than one pipeline after the other. The same arguments give the same schedule.
    More iterations need not find a shorter one, as annealing is then slower from the start.

    Args:
        pipelines: one or more; for opposite directions see `opposite_pipelines`.
        activation_limit_bytes: on each device; `all_activation_bytes` of a `Workload` sets none.
            None: what the pipelines hold at most, one after the other, under 1F1B.
        seed: of the annealing.
        iterations: moves that it tries at most, after a list schedule for each 50 of them, 4 at
            least; it ends at the lower bound.

    Raises:
        DoesNotFit: a limit below the activations of one micro-batch.
    """
    workload = Workload(tuple(pipelines))
    given = activation_limit_bytes
    if given is None:
        given = max(_schedule(workload, serial_orders(workload)).peak_bytes)
    check_limit(workload, given)
    limit = given if given < workload.all_activation_bytes else None
    bound = lower_bound(workload)
    enough = bound * (1.0 + ROUNDING)
    starts = _starts(workload, limit, enough, max(LEAST_LISTS, iterations // ITERATIONS_PER_LIST))
    best, random = starts[0], Random(seed)
    for start in starts:
        if best.makespan_seconds <= enough:
            break
        annealing = Annealing(workload, start.orders, limit, random)
        annealing.run(iterations // len(starts), enough)
        if annealing.best_seconds < best.makespan_seconds:
            best = _schedule(workload, annealing.best_orders)
    return FusedSchedule(best, given, bound, serial_seconds(pipelines, limit))


def _starts(workload: Workload, limit: int | None, enough: float, lists: int) -> list[Schedule]:
    """The best of all different schedules that are known without search, best first; only one where
    it is short enough."""
    found: dict[Orders, Schedule] = {}
    for orders in islice(_known_orders(workload, limit), 2 + lists):
        found[orders] = schedule = _schedule(workload, orders)
        if schedule.makespan_seconds <= enough:
            return [schedule]
    ranked = sorted(found.values(), key=lambda each: (each.makespan_seconds, max(each.peak_bytes)))
    return ranked[:STARTS]


def _known_orders(workload: Workload, limit: int | None) -> Iterator[Orders]:
    yield serial_orders(workload, limit)
    yield serial_orders(workload, limit, is_last_first=True)
    yield from list_schedules(workload, limit)


def _schedule(workload: Workload, orders: Orders) -> Schedule:
    schedule = schedule_of(workload, orders)
    assert schedule is not None
    return schedule
