"""Training pipelines on the same devices as one schedule, such as an actor's and a critic's.

Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: a pipeline's bubbles are filled with another
model's micro-batches, in the opposite direction; simulated annealing of the order on each device,
under a limit on activations. What is ours: list schedules to start from, moves on the critical
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
from rlhf_flow.planning.fused_pipelines.pipeline import Orders, Pipeline, Workload
from rlhf_flow.planning.fused_pipelines.priorities import list_schedules
from rlhf_flow.planning.fused_pipelines.schedule import Schedule, schedule_of
from rlhf_flow.planning.fused_pipelines.serial import serial_orders, serial_seconds

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
