"""Which operations matter most, and the rules of the list schedules that are tried. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rlhf_planner.pipelines.list_schedule import Limits, Priorities, list_orders
from rlhf_planner.pipelines.pipeline import Operation, Orders, Pipeline, Workload
from rlhf_planner.pipelines.schedule import tails

AHEAD: Sequence[int | None] = (0, None, 1, 2, 4, -1)
"""Which `Limits.ahead` are tried."""


def longest_first(workload: Workload) -> Priorities:
    """What has most behind it goes first: the longest way to the end (Graham's critical-path
    rule)."""
    after = tails(workload)
    return [
        (seconds + tail, op.is_backward, -op.pipeline)
        for op, seconds, tail in zip(workload.operations, workload.seconds, after, strict=True)
    ]


def backward_first(workload: Workload) -> Priorities:
    """Backward passes go first, which keeps few activations; otherwise `longest_first`."""
    found = longest_first(workload)
    return [(op.is_backward, *each) for op, each in zip(workload.operations, found, strict=True)]


def first_kind_first(workload: Workload) -> Priorities:
    """The first pipeline and its copies go first, and others where these leave room; otherwise
    `longest_first`."""
    found = longest_first(workload)
    kind = kind_of(workload.pipelines[0])
    is_first = [kind_of(pipeline) == kind for pipeline in workload.pipelines]
    return [
        (is_first[op.pipeline], *each) for op, each in zip(workload.operations, found, strict=True)
    ]


RULES: Sequence[Callable[[Workload], Priorities]] = (
    longest_first,
    first_kind_first,
    backward_first,
)


@dataclass(frozen=True)
class _Trial:
    """A list schedule: in which sense of time, by which priorities, under which limits."""

    is_mirrored: bool
    rule: int
    is_patient: bool
    first_ahead: int | None
    other_ahead: int | None


def list_schedules(workload: Workload, limit: int | None) -> Iterator[Orders]:
    """Orders by every rule, built from the start on, and built from the end back; with several
    limits on how far a pipeline may be ahead, since which is best depends on the memory that there
    is. The first pipeline and its copies have one such limit, all others have another.
    """
    sides = (workload, mirrored(workload))
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
    """All of them; first those which are the first ones of all their choices, or nearly so."""
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
    """Equal for copies of a pipeline."""
    return (
        pipeline.forward_seconds,
        pipeline.backward_seconds,
        pipeline.activation_bytes,
        pipeline.micro_batches,
    )


def mirrored(workload: Workload) -> Workload:
    """The same with time running back: what was the backward pass through a stage is forward."""
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
    """Orders with time running back, in the numbers of the mirrored workload."""

    def other(number: int) -> int:
        op = workload.operations[number]
        last = workload.pipelines[op.pipeline].micro_batches - 1
        return workload.number(
            Operation(op.pipeline, op.stage, last - op.micro_batch, not op.is_backward)
        )

    return tuple(tuple(map(other, reversed(order))) for order in orders)
