"""Moves in rounds of bounded size, so that staging memory is bounded. Pure: equal on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlhf_runtime.reshard.boxes import Box
from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.plan import Move, ReshardPlan


def buckets(plan: ReshardPlan, max_elements: int) -> tuple[tuple[Move, ...], ...]:
    """Group a plan's moves between ranks into rounds.

    In each round every rank sends at most `max_elements` and receives at most `max_elements`.
    A move larger than that is split.

    Args:
        plan: the plan.
        max_elements: bound of either direction, per rank and round.

    Returns:
        The rounds, in the plan's order.

    Raises:
        PlanError: max_elements is below 1.
    """
    if max_elements < 1:
        raise PlanError(
            f"a bucket must hold something: got {max_elements} elements, allowed 1 or more"
        )
    rounds: list[list[Move]] = []
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for move in plan.moves:
        for box in split(move.box, max_elements):
            volume = box.volume
            fullest = max(sent[move.source_rank], received[move.target_rank])
            if not rounds or fullest + volume > max_elements:
                rounds.append([])
                sent.clear()
                received.clear()
            sent[move.source_rank] += volume
            received[move.target_rank] += volume
            rounds[-1].append(move if box is move.box else move._replace(box=box))
    return tuple(tuple(round_) for round_ in rounds)


def split(box: Box, max_elements: int) -> Iterator[Box]:
    """Cut a box into disjoint boxes of at most so many elements, along its first dimensions."""
    volume = box.volume
    if volume <= max_elements:
        yield box
        return
    dim = next(dim for dim, length in enumerate(box.shape) if length > 1)
    length = box.shape[dim]
    step = max(1, max_elements // (volume // length))
    for offset in range(0, length, step):
        start, shape = list(box.start), list(box.shape)
        start[dim] += offset
        shape[dim] = min(step, length - offset)
        yield from split(Box(tuple(start), tuple(shape)), max_elements)
