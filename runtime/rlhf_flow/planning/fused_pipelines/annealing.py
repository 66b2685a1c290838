"""Better orders by small changes of given ones. Pure, and the same for the same random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from rlhf_flow.planning.fused_pipelines.bounds import tails
from rlhf_flow.planning.fused_pipelines.pipeline import Orders, Workload
from rlhf_flow.planning.fused_pipelines.schedule import (
    changed_end_times,
    end_times,
    peak_bytes,
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
