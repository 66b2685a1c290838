"""Priority rules, and the list schedules that combine them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rlhf_planner.pipelines.list_schedule import ForwardLimits, Priorities, list_orders
from rlhf_planner.pipelines.pipeline import Orders, Pipeline, Workload
from rlhf_planner.pipelines.schedule import tails
from rlhf_sizing.schedules import Operation

EXTRA_IN_FLIGHT: Sequence[int | None] = (0, None, 1, 2, 4, -1)
"""Values of `ForwardLimits.extra_in_flight` to try, in the order of preference."""


def critical_path_first(workload: Workload) -> Priorities:
    """Prefer the longest remaining path to the end (Graham's critical-path rule)."""
    after = tails(workload)
    # Ties go to backward passes, which release activations, then to earlier pipelines.
    return [
        (seconds + tail, op.is_backward, -op.pipeline)
        for op, seconds, tail in zip(workload.operations, workload.seconds, after, strict=True)
    ]


def backward_first(workload: Workload) -> Priorities:
    """Prefer backward passes, which keeps few activations; then `critical_path_first`."""
    base = critical_path_first(workload)
    return [(op.is_backward, *rest) for op, rest in zip(workload.operations, base, strict=True)]


def first_model_first(workload: Workload) -> Priorities:
    """Prefer the first pipeline and its replicas; then `critical_path_first`."""
    base = critical_path_first(workload)
    first = replica_key(workload.pipelines[0])
    is_first = [replica_key(pipeline) == first for pipeline in workload.pipelines]
    return [
        (is_first[op.pipeline], *rest) for op, rest in zip(workload.operations, base, strict=True)
    ]


RULES: Sequence[Callable[[Workload], Priorities]] = (
    critical_path_first,
    first_model_first,
    backward_first,
)


@dataclass(frozen=True)
class _Trial:
    """Settings of one list schedule."""

    is_mirrored: bool
    """Build it from the end back."""
    rule: int
    """Index into `RULES`."""
    is_patient: bool
    first_extra: int | None
    """`ForwardLimits.extra_in_flight` of the first pipeline and its replicas."""
    other_extra: int | None
    """The same for all other pipelines."""


def list_schedules(workload: Workload, limit: int | None) -> Iterator[Orders]:
    """Yield the orders of list schedules, the most promising settings first.

    They combine every rule with both directions of time, patience, and several limits on the
    micro-batches in flight.

    Args:
        workload: all operations.
        limit: bytes of activations on each device. None: unlimited.
    """
    sides = (workload, mirror_workload(workload))
    priorities = [[rule(side) for rule in RULES] for side in sides]
    keys = [replica_key(pipeline) for pipeline in workload.pipelines]
    for trial in _trials():
        # Which limit is best depends on the memory, so several are tried. Replicas of a model share
        # one: separate limits would multiply the number of trials.
        extra = tuple(trial.first_extra if key == keys[0] else trial.other_extra for key in keys)
        orders = list_orders(
            sides[trial.is_mirrored],
            priorities[trial.is_mirrored][trial.rule],
            ForwardLimits(limit, extra),
            trial.is_patient,
        )
        yield mirror_orders(sides[1], orders) if trial.is_mirrored else orders


def _trials() -> list[_Trial]:
    """All combinations of settings, ordered by the sum of their ranks."""
    # Each setting lists its preferred choice first. The caller stops after some trials, so
    # combinations of first choices come first.
    choices = product(
        enumerate((True, False)),
        enumerate(range(len(RULES))),
        enumerate((True, False)),
        enumerate(EXTRA_IN_FLIGHT),
        enumerate(EXTRA_IN_FLIGHT),
    )
    ranked = sorted(choices, key=lambda chosen: sum(rank for rank, _ in chosen))
    return [
        _Trial(is_mirrored, rule, is_patient, first, other)
        for (_, is_mirrored), (_, rule), (_, is_patient), (_, first), (_, other) in ranked
    ]


def replica_key(pipeline: Pipeline) -> tuple[object, ...]:
    """A key that is equal for replicas of a pipeline."""
    return (
        pipeline.forward_seconds,
        pipeline.backward_seconds,
        pipeline.activation_bytes,
        pipeline.micro_batches,
    )


def mirror_workload(workload: Workload) -> Workload:
    """Reverse time: the backward pass through a stage becomes its forward pass."""
    return Workload(
        tuple(
            replace(
                pipeline,
                forward_seconds=pipeline.backward_seconds,
                backward_seconds=pipeline.forward_seconds,
            )
            for pipeline in workload.pipelines
        )
    )


def mirror_orders(workload: Workload, orders: Orders) -> Orders:
    """Reverse time in orders of a mirrored workload; returns orders of the original one."""

    def mirror(number: int) -> int:
        op = workload.operations[number]
        # The last micro-batch to enter becomes the first, so that they stay in sequence.
        last = workload.pipelines[op.pipeline].micro_batches - 1
        return workload.number(
            Operation(op.pipeline, op.stage, last - op.micro_batch, not op.is_backward)
        )

    return tuple(tuple(map(mirror, reversed(order))) for order in orders)
