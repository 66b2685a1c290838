"""Fuse training pipelines on the same devices, such as actor and critic, into one schedule.

Starts from list schedules and improves them by simulated annealing. Pure; the same arguments and
random numbers give the same schedule.

Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: a pipeline's bubbles are filled with another
model's micro-batches, in the opposite direction; simulated annealing of the order on each device,
under a limit on activations. Ours are the list schedules to start from, moves on the critical path,
and a lower bound that proves eleven of the paper's twelve published schedules to be optimal.
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
    build_schedule,
    end_times,
    lower_bound,
    peak_bytes,
    serial_orders,
    serial_seconds,
    tails,
    update_end_times,
)

FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.005, 0.0002
"""Shares of the makespan; a schedule longer by this share is accepted with probability 1 / e."""
RANDOM_MOVE_SHARE = 0.3
"""Share of moves at random positions; all others are on the critical path."""


class Annealing:
    """Simulated annealing of the order of operations on each device.

    It always accepts a schedule that is no longer. It accepts a longer one with a probability that
    falls with the difference and with the temperature.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion, anneals by swaps of neighbours and by
    moves, both at random positions. Here most moves swap neighbours on the critical path: van
    Laarhoven, Aarts and Lenstra, Job shop scheduling by simulated annealing (1992).
    """

    def __init__(
        self, workload: Workload, orders: Orders, limit: int | None, random: Random
    ) -> None:
        """Start from some orders.

        Args:
            workload: all operations.
            orders: initial orders, without deadlock and within the limit; micro-batches in
                sequence.
            limit: bytes of activations on each device. None: unlimited.
            random: source of randomness.
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
        """Try up to `iterations` moves; stop when a schedule reaches the bound."""
        # Cool geometrically from the first to the last temperature.
        cooling = (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (1 / max(1, iterations))
        temperature = FIRST_TEMPERATURE * self.best_seconds
        for _ in range(iterations):
            if self.best_seconds <= bound:
                return
            temperature *= cooling
            is_random = self._random.random() < RANDOM_MOVE_SHARE
            move = self._random_move() if is_random else self._critical_path_move()
            if move is not None:
                self._try(*move, temperature)

    def _random_move(self) -> tuple[int, int, int] | None:
        """A device, the position of an operation in its order, and the new position."""
        device = self._random.randrange(len(self._orders))
        order = self._orders[device]
        if len(order) < 2:
            return None
        position, desired = self._random.randrange(len(order)), self._random.randrange(len(order))
        step = 1 if desired > position else -1
        target = position
        # Stop at the first operation that must not be overtaken.
        while target != desired and self._may_swap(order[position], order[target + step]):
            target += step
        return None if target == position else (device, position, target)

    def _critical_path_move(self) -> tuple[int, int, int] | None:
        """Like `_random_move`, but swaps neighbours on a critical path."""
        # Swaps elsewhere cannot shorten the schedule, and swaps on the path cause no deadlock.
        ends, predecessors = self._ends, self._workload.predecessors
        devices = self._workload.devices
        number = ends.index(self._makespan)
        swaps: list[tuple[int, int, int]] = []
        # Walk back from the last operation along whatever ended last before each one.
        while True:
            device, position = devices[number], self._positions[number]
            source = predecessors[number]
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
        """True if two operations of a device may change their order."""
        one, other = self._workload.operations[first], self._workload.operations[second]
        if one.pipeline != other.pipeline:
            return True
        # Micro-batches stay in sequence, and a backward pass stays after its own forward pass.
        return one.micro_batch != other.micro_batch and one.is_backward != other.is_backward

    def _try(self, device: int, position: int, target: int, temperature: float) -> None:
        """Move an operation; undo the move if it breaks the limit or is not accepted."""
        first = self._orders[device][min(position, target)]
        since = self._ends[first] - self._workload.seconds[first]
        self._move(device, position, target)
        order = self._orders[device]
        if self._limit is None or peak_bytes(self._workload, order) <= self._limit:
            # Accept if exp(-longer / temperature) > uniform number, solved for the makespan: with
            # a deadline, end times of a rejected schedule need not be computed to the end.
            deadline = self._makespan - temperature * math.log(1.0 - self._random.random())
            ends = update_end_times(
                self._workload, self._orders, self._ends, since, self._tails, deadline
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
    """Position of each operation in the order of its device."""
    positions = [0] * count
    for order in orders:
        for position, number in enumerate(order):
            positions[number] = position
    return positions


ITERATIONS_PER_LIST_SCHEDULE = 50
"""Moves for which one list schedule is built; both take about as long."""
MIN_LIST_SCHEDULES = 4
MAX_STARTS = 3
"""Schedules from which annealing starts; they share the moves equally."""
ROUNDING = 1e-9
"""Relative excess over a bound that counts as rounding."""


@dataclass(frozen=True)
class FusedSchedule:
    """The best schedule of a search, with its bound and its baseline."""

    schedule: Schedule
    activation_limit_bytes: int
    """Limit of each device that the schedule keeps."""
    lower_bound_seconds: float
    """No schedule is shorter, even without a limit on activations."""
    serial_seconds: float
    """Baseline: one pipeline after the other, each under 1F1B, within the same limit."""

    @property
    def gap(self) -> float:
        """Relative excess of the makespan over the lower bound; 0 or more."""
        # Rounding can put the makespan just below the bound.
        return max(0.0, self.schedule.makespan_seconds / self.lower_bound_seconds - 1.0)

    @property
    def is_optimal(self) -> bool:
        """True if the bound proves that no schedule is shorter."""
        return self.gap <= ROUNDING

    @property
    def speed_up(self) -> float:
        """Serial time divided by the makespan; 1 or more."""
        return self.serial_seconds / self.schedule.makespan_seconds


def fuse_pipelines(
    pipelines: Sequence[Pipeline],
    activation_limit_bytes: int | None = None,
    seed: int = 0,
    iterations: int = 2000,
) -> FusedSchedule:
    """Search for a short schedule of pipelines that share devices.

    It is never longer than one pipeline after the other. The same arguments give the same schedule.

    Args:
        pipelines: one or more; for opposite directions see `opposite_pipelines`.
        activation_limit_bytes: on each device; `Workload.max_activation_bytes` never binds.
            None: the peak of the pipelines one after the other, under 1F1B.
        seed: of the annealing.
        iterations: maximum of moves. More need not give a shorter schedule, since annealing then
            cools more slowly. One list schedule is built for every 50, but at least 4. The search
            ends early at the lower bound.

    Raises:
        DoesNotFit: the limit is below the activations of one micro-batch.
    """
    workload = Workload(tuple(pipelines))
    limit_bytes = activation_limit_bytes
    if limit_bytes is None:
        limit_bytes = max(_build_valid(workload, serial_orders(workload)).peak_bytes)
    check_limit(workload, limit_bytes)
    # A limit that never binds is dropped, which saves its checks.
    limit = limit_bytes if limit_bytes < workload.max_activation_bytes else None
    bound = lower_bound(workload)
    target = bound * (1.0 + ROUNDING)
    num_lists = max(MIN_LIST_SCHEDULES, iterations // ITERATIONS_PER_LIST_SCHEDULE)
    starts = _start_schedules(workload, limit, target, num_lists)
    best, random = starts[0], Random(seed)
    for start in starts:
        if best.makespan_seconds <= target:
            break
        annealing = Annealing(workload, start.orders, limit, random)
        annealing.run(iterations // len(starts), target)
        if annealing.best_seconds < best.makespan_seconds:
            best = _build_valid(workload, annealing.best_orders)
    return FusedSchedule(best, limit_bytes, bound, serial_seconds(pipelines, limit))


def _start_schedules(
    workload: Workload, limit: int | None, target: float, num_lists: int
) -> list[Schedule]:
    """The best different schedules without annealing, best first; only one if it reaches the
    target makespan."""
    schedules: dict[Orders, Schedule] = {}
    # Two serial orders come before the list schedules.
    for orders in islice(_initial_orders(workload, limit), 2 + num_lists):
        schedules[orders] = schedule = _build_valid(workload, orders)
        if schedule.makespan_seconds <= target:
            return [schedule]
    ranked = sorted(
        schedules.values(),
        key=lambda schedule: (schedule.makespan_seconds, max(schedule.peak_bytes)),
    )
    return ranked[:MAX_STARTS]


def _initial_orders(workload: Workload, limit: int | None) -> Iterator[Orders]:
    # With the serial orders among the starts, the result is never longer than they are.
    yield serial_orders(workload, limit)
    yield serial_orders(workload, limit, is_reversed=True)
    yield from list_schedules(workload, limit)


def _build_valid(workload: Workload, orders: Orders) -> Schedule:
    schedule = build_schedule(workload, orders)
    assert schedule is not None
    return schedule
