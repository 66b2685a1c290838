"""Better orders by small changes of given ones. Pure, and the same for the same random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from rlhf_flow.planning.fused_pipelines.pipeline import Orders, Workload
from rlhf_flow.planning.fused_pipelines.schedule import end_times, peak_bytes

FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.02, 0.0002
"""Shares of the makespan: a schedule that takes so much longer is accepted in one of e trials."""
RANDOM_SHARE = 0.1
"""Of swaps that are anywhere, instead of on the critical path."""


class Annealing:
    """Swaps two neighbouring operations of a device, again and again, and keeps what it is led to:
    always what is no slower, and what is slower the more rarely the slower it is and the later.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion, anneals such swaps at random places.
    Here nine of ten are on the critical path, as others cannot make a schedule shorter, and such a
    swap leads to no deadlock: van Laarhoven, Aarts and Lenstra, Job shop scheduling by simulated
    annealing (1992).
    """

    def __init__(
        self, workload: Workload, orders: Orders, limit: int | None, random: Random
    ) -> None:
        """
        Args:
            workload: all operations.
            orders: to start from; within the limit.
            limit: bytes of activations on each device. None: any number.
            random: where randomness comes from.
        """
        ends = end_times(workload, orders)
        assert ends is not None
        self._workload = workload
        self._limit = limit
        self._random = random
        self._orders = [list(order) for order in orders]
        self._places = _places(orders, len(ends))
        self._ends = ends
        self._makespan = max(ends)
        self.best_orders, self.best_seconds = orders, self._makespan

    def run(self, iterations: int, bound: float) -> None:
        """Try so many swaps, or fewer where a schedule reaches the bound."""
        cooling = (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (1 / max(1, iterations))
        temperature = FIRST_TEMPERATURE * self.best_seconds
        for _ in range(iterations):
            if self.best_seconds <= bound:
                return
            temperature *= cooling
            swap = self._choose()
            if swap is not None:
                self._try(*swap, temperature)

    def _choose(self) -> tuple[int, int] | None:
        """A device, and the place of the first of two operations that may change places."""
        if self._random.random() < RANDOM_SHARE:
            device = self._random.randrange(len(self._orders))
            if len(self._orders[device]) < 2:
                return None
            place = self._random.randrange(len(self._orders[device]) - 1)
            return (device, place) if self._may_swap(device, place) else None
        critical = self._critical()
        return self._random.choice(critical) if critical else None

    def _critical(self) -> list[tuple[int, int]]:
        """Neighbours on one critical path, which may change places."""
        ends, before, devices = self._ends, self._workload.before, self._workload.devices
        number = max(range(len(ends)), key=ends.__getitem__)
        found: list[tuple[int, int]] = []
        while True:
            device, place = devices[number], self._places[number]
            source = before[number]
            neighbour = self._orders[device][place - 1] if place else -1
            if neighbour < 0 and source < 0:
                return found
            if neighbour < 0 or (source >= 0 and ends[source] > ends[neighbour]):
                number = source
                continue
            if self._may_swap(device, place - 1):
                found.append((device, place - 1))
            number = neighbour

    def _may_swap(self, device: int, place: int) -> bool:
        """Whether the order of two neighbours is free: they are of other micro-batches and of other
        stages or directions."""
        first, second = self._orders[device][place : place + 2]
        one, other = self._workload.operations[first], self._workload.operations[second]
        if one.pipeline != other.pipeline:
            return True
        return one.micro_batch != other.micro_batch and one.is_backward != other.is_backward

    def _try(self, device: int, place: int, temperature: float) -> None:
        """Swap two neighbours, and swap them back if the limit or chance says so."""
        self._swap(device, place)
        if self._limit is None or peak_bytes(self._workload, self._orders[device]) <= self._limit:
            ends = end_times(self._workload, self._orders)
            if ends is not None and self._accepts(max(ends), temperature):
                self._ends, self._makespan = ends, max(ends)
                if self._makespan < self.best_seconds:
                    self.best_seconds = self._makespan
                    self.best_orders = tuple(map(tuple, self._orders))
                return
        self._swap(device, place)

    def _accepts(self, makespan: float, temperature: float) -> bool:
        longer = makespan - self._makespan
        return longer <= 0 or self._random.random() < math.exp(-longer / temperature)

    def _swap(self, device: int, place: int) -> None:
        order = self._orders[device]
        order[place], order[place + 1] = order[place + 1], order[place]
        self._places[order[place]] = place
        self._places[order[place + 1]] = place + 1


def _places(orders: Sequence[Sequence[int]], count: int) -> list[int]:
    """Of each operation: its place on its device."""
    places = [0] * count
    for order in orders:
        for place, number in enumerate(order):
            places[number] = place
    return places
