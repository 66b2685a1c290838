"""Schedules in one go: whenever a device is free, it takes what matters most of what is there.
Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rlhf_flow.planning.fused_pipelines.activations import ActivationLimit, Limits
from rlhf_flow.planning.fused_pipelines.bounds import tails
from rlhf_flow.planning.fused_pipelines.pipeline import Operation, Orders, Workload

Priorities = Sequence[tuple[float, ...]]
"""Of each operation; the largest goes first."""


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


RULES: Sequence[Callable[[Workload], Priorities]] = (longest_first, backward_first)


AHEAD: Sequence[int | None] = (None, 0, 1, 4, 2, -1)
"""Which `Limits.ahead` are tried; the first ones are the most often good."""


def list_schedules(workload: Workload, limit: int | None) -> Iterator[Orders]:
    """Orders by every rule, built from the start on, and built from the end back; first with no
    limit on how far a pipeline may be ahead, then with several, since which is best depends on the
    memory that there is. The first pipeline has a limit of its own, all others have one together.
    """
    backwards = mirrored(workload)
    pairs = product(enumerate(AHEAD), enumerate(AHEAD))
    for (_, first), (_, others) in sorted(pairs, key=lambda pair: pair[0][0] + pair[1][0]):
        limits = Limits(limit, (first, *[others] * (len(workload.pipelines) - 1)))
        for rule in RULES:
            yield list_orders(workload, rule(workload), limits)
            yield mirrored_orders(backwards, list_orders(backwards, rule(backwards), limits))


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


@dataclass
class _Line:
    """The operations of a stage in one direction, which run in the order of their micro-batches."""

    numbers: tuple[int, ...]
    started: int = 0
    ready: int = 0
    """How many may run, started ones included, since those before them have ended."""


def list_orders(workload: Workload, priorities: Priorities, limits: Limits) -> Orders:
    """The orders of devices each of which, whenever it is free, starts the operation of the highest
    priority that is ready and that the limits let start.
    """
    operations, seconds = workload.operations, workload.seconds
    lines = _lines(workload)
    on_device = [
        [line for line in lines.values() if workload.devices[line.numbers[0]] == device]
        for device in range(workload.num_devices)
    ]
    activations = ActivationLimit(workload, limits)
    orders: list[list[int]] = [[] for _ in on_device]
    running: list[tuple[float, int]] = []
    idle, now = set(range(len(on_device))), 0.0
    while True:
        for device in sorted(idle):
            number = _start_next(on_device[device], workload, priorities, activations)
            if number is not None:
                orders[device].append(number)
                idle.remove(device)
                heapq.heappush(running, (now + seconds[number], number))
        if not running:
            return tuple(map(tuple, orders))
        now = running[0][0]
        while running and running[0][0] <= now:
            _, number = heapq.heappop(running)
            idle.add(workload.devices[number])
            activations.end(operations[number])
            if (following := workload.after[number]) >= 0:
                lines[_line_of(operations[following])].ready += 1


def _lines(workload: Workload) -> dict[tuple[int, int, bool], _Line]:
    numbers: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, op in enumerate(workload.operations):
        numbers[_line_of(op)].append(number)
    lines = {key: _Line(tuple(found)) for key, found in numbers.items()}
    for index, pipeline in enumerate(workload.pipelines):
        lines[index, 0, False].ready = pipeline.micro_batches
    return lines


def _line_of(op: Operation) -> tuple[int, int, bool]:
    return op.pipeline, op.stage, op.is_backward


def _start_next(
    lines: Iterable[_Line],
    workload: Workload,
    priorities: Priorities,
    activations: ActivationLimit,
) -> int | None:
    """Start what matters most on a device; None if nothing may start."""
    ready = [line for line in lines if line.started < line.ready]
    ready.sort(key=lambda line: priorities[line.numbers[line.started]], reverse=True)
    for line in ready:
        number = line.numbers[line.started]
        if activations.may_start(workload.operations[number]):
            activations.start(workload.operations[number])
            line.started += 1
            return number
    return None
