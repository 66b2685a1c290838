"""Priorities and limits of the list schedules that are tried. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rlhf_planner.pipelines.list_schedule import Limits, Priorities, list_orders
from rlhf_planner.pipelines.pipeline import Operation, Orders, Pipeline, Workload
from rlhf_planner.pipelines.schedule import tails

AHEAD: Sequence[int | None] = (0, None, 1, 2, 4, -1)
"""Values of `Limits.ahead` that are tried."""


def longest_first(workload: Workload) -> Priorities:
    """The longest remaining path goes first (Graham's critical-path rule)."""
    after = tails(workload)
    return [
        (seconds + tail, op.is_backward, -op.pipeline)
        for op, seconds, tail in zip(workload.operations, workload.seconds, after, strict=True)
    ]


def backward_first(workload: Workload) -> Priorities:
    """Backward passes go first, which keeps few activations; then `longest_first`."""
    longest = longest_first(workload)
    return [
        (op.is_backward, *priority)
        for op, priority in zip(workload.operations, longest, strict=True)
    ]


def first_kind_first(workload: Workload) -> Priorities:
    """The first pipeline and its copies go first; then `longest_first`."""
    longest = longest_first(workload)
    kind = kind_of(workload.pipelines[0])
    is_first = [kind_of(pipeline) == kind for pipeline in workload.pipelines]
    return [
        (is_first[op.pipeline], *priority)
        for op, priority in zip(workload.operations, longest, strict=True)
    ]


RULES: Sequence[Callable[[Workload], Priorities]] = (
    longest_first,
    first_kind_first,
    backward_first,
)


@dataclass(frozen=True)
class _Trial:
    """A list schedule: direction of time, priorities and limits."""

    is_mirrored: bool
    rule: int
    is_patient: bool
    first_ahead: int | None
    other_ahead: int | None


def list_schedules(workload: Workload, limit: int | None) -> Iterator[Orders]:
    """Orders by every rule, built from the start and from the end, under several limits on how far
    a
    pipeline may be ahead. The first pipeline and its copies have one such limit, all others
    another.
    """
    sides = (workload, mirrored(workload))
    # Which limit is best depends on the available memory, so several are tried.
    priorities = [[rule(side) for rule in RULES] for side in sides]
    kinds = [kind_of(pipeline) for pipeline in workload.pipelines]
    for trial in _trials():
        ahead = tuple(
            trial.first_ahead if kind == kinds[0] else trial.other_ahead for kind in kinds
        )
        orders = list_orders(
            sides[trial.is_mirrored],
            priorities[trial.is_mirrored][trial.rule],
            Limits(limit, ahead),
            trial.is_patient,
        )
        yield mirrored_orders(sides[1], orders) if trial.is_mirrored else orders


def _trials() -> list[_Trial]:
    """All trials; those with the first choices of each kind come first."""
    choices = product(
        enumerate((True, False)),
        enumerate(range(len(RULES))),
        enumerate((True, False)),
        enumerate(AHEAD),
        enumerate(AHEAD),
    )
    ranked = sorted(choices, key=lambda chosen: sum(rank for rank, _ in chosen))
    return [
        _Trial(is_mirrored, rule, is_patient, first, other)
        for (_, is_mirrored), (_, rule), (_, is_patient), (_, first), (_, other) in ranked
    ]


def kind_of(pipeline: Pipeline) -> tuple[object, ...]:
    """A key that copies of a pipeline share."""
    return (
        pipeline.forward_seconds,
        pipeline.backward_seconds,
        pipeline.activation_bytes,
        pipeline.micro_batches,
    )


def mirrored(workload: Workload) -> Workload:
    """The workload with time reversed: backward passes become forward passes."""
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


def mirrored_orders(workload: Workload, orders: Orders) -> Orders:
    """Orders with time reversed, in the numbers of the mirrored workload."""

    def other(number: int) -> int:
        op = workload.operations[number]
        last = workload.pipelines[op.pipeline].micro_batches - 1
        return workload.number(
            Operation(op.pipeline, op.stage, last - op.micro_batch, not op.is_backward)
        )

    return tuple(tuple(map(other, reversed(order))) for order in orders)
