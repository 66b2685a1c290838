"""Every order of small workloads, and the shortest schedule among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from rlhf_planner.pipelines.pipeline import Pipeline, Workload
from rlhf_planner.pipelines.schedule import build_schedule, peak_bytes


def shortest(pipelines: Sequence[Pipeline], limit: int | None, keeps_order: bool) -> float:
    """Seconds of the shortest schedule that keeps to a limit.

    Args:
        pipelines: few, with few micro-batches.
        limit: bytes of activations on each device.
        keeps_order: whether micro-batches of a pipeline go through each stage in their order.
    """
    workload = Workload(tuple(pipelines))
    orders = [
        [
            order
            for order in _orders(workload, device, keeps_order)
            if limit is None or peak_bytes(workload, order) <= limit
        ]
        for device in range(workload.num_devices)
    ]
    best = float("inf")
    for chosen in product(*orders):
        schedule = build_schedule(workload, chosen)
        if schedule is not None:
            best = min(best, schedule.makespan_seconds)
    return best


def _orders(workload: Workload, device: int, keeps_order: bool) -> Iterator[tuple[int, ...]]:
    numbers = [number for number, at in enumerate(workload.devices) if at == device]
    if not keeps_order:
        yield from permutations(numbers)
        return
    operations = workload.operations
    lines: dict[tuple[int, int, bool], list[int]] = {}
    for number in numbers:
        op = operations[number]
        lines.setdefault((op.pipeline, op.stage, op.is_backward), []).append(number)
    yield from _interleaved(list(lines.values()))


def _interleaved(lines: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    if not any(lines):
        yield ()
    for index, line in enumerate(lines):
        if line:
            rest = [*lines[:index], line[1:], *lines[index + 1 :]]
            for following in _interleaved(rest):
                yield (line[0], *following)
