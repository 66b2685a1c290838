"""Training pipelines on the same devices as one schedule, such as an actor's and a critic's.

Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: a pipeline's bubbles are filled with another
model's micro-batches, in the opposite direction; simulated annealing of the order on each device,
under a limit on activations. What is ours: list schedules to start from, swaps on the critical
path, and a lower bound that proves eleven of the paper's twelve published schedules to be optimal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from rlhf_flow.planning.fused_pipelines.activations import check_limit
from rlhf_flow.planning.fused_pipelines.annealing import Annealing
from rlhf_flow.planning.fused_pipelines.bounds import lower_bound
from rlhf_flow.planning.fused_pipelines.list_schedule import list_schedules
from rlhf_flow.planning.fused_pipelines.pipeline import Pipeline, Workload
from rlhf_flow.planning.fused_pipelines.schedule import Schedule, schedule_of
from rlhf_flow.planning.fused_pipelines.serial import serial_orders, serial_seconds

ITERATIONS_PER_LIST = 20
"""How many swaps a list schedule counts for; it takes the time of about as many."""
LEAST_LISTS = 4
ROUNDING = 1e-9
"""Share of a bound by which a schedule may be longer and still be as long."""


@dataclass(frozen=True)
class FusedSchedule:
    """The best schedule that was found, and what to compare it with."""

    schedule: Schedule
    lower_bound_seconds: float
    """No schedule is shorter, whatever activations it keeps."""
    serial_seconds: float
    """One pipeline after the other, each under 1F1B. It may need more than the limit."""

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
        """How many times as long the pipelines take one after the other."""
        return self.serial_seconds / self.schedule.makespan_seconds


def fuse_pipelines(
    pipelines: Sequence[Pipeline],
    activation_limit_bytes: int | None = None,
    seed: int = 0,
    iterations: int = 2000,
) -> FusedSchedule:
    """A short schedule of pipelines that share devices.

    It is never longer than one pipeline after the other, where these keep to the limit. The same
    arguments give the same schedule. More iterations need not find a shorter one, as annealing is
    then slower from the start.

    Args:
        pipelines: one or more; for opposite directions see `reversed_copies`.
        activation_limit_bytes: on each device. None: no limit.
        seed: of the annealing.
        iterations: swaps that it tries at most, after a list schedule for each 20 of them, 4 at
            least; it ends at the lower bound.

    Raises:
        DoesNotFit: a limit below the activations of one micro-batch.
    """
    workload = Workload(tuple(pipelines))
    limit = activation_limit_bytes
    if limit is not None:
        check_limit(workload, limit)
    bound = lower_bound(workload)
    enough = bound * (1.0 + ROUNDING)
    best: Schedule | None = None
    tried = 1 + max(LEAST_LISTS, iterations // ITERATIONS_PER_LIST)
    for schedule in islice(_first_schedules(workload, limit), tried):
        if best is None or _costs(schedule) < _costs(best):
            best = schedule
        if best.makespan_seconds <= enough:
            break
    assert best is not None
    annealing = Annealing(workload, best.orders, limit, Random(seed))
    annealing.run(iterations, enough)
    found = schedule_of(workload, annealing.best_orders)
    assert found is not None
    return FusedSchedule(found, bound, serial_seconds(pipelines))


def _first_schedules(workload: Workload, limit: int | None) -> Iterator[Schedule]:
    """One pipeline after the other, where it keeps to the limit, and list schedules."""
    serial = schedule_of(workload, serial_orders(workload))
    assert serial is not None
    if limit is None or max(serial.peak_bytes) <= limit:
        yield serial  # first, so that nothing longer is ever taken
    for orders in list_schedules(workload, limit):
        schedule = schedule_of(workload, orders)
        assert schedule is not None
        yield schedule


def _costs(schedule: Schedule) -> tuple[float, int]:
    return schedule.makespan_seconds, max(schedule.peak_bytes)
