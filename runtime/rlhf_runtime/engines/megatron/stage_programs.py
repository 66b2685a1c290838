"""Programs: what each rank of a pipeline computes and exchanges with other ranks, in order. Pure.

A program follows from the orders of operations on all ranks. Several models may run on the same
ranks, in any directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_sizing.schedules import Operation, OperationOrders, end_times, predecessor

FORWARD_SECONDS, BACKWARD_SECONDS = 1.0, 2.0
"""Durations that order messages. Only their order counts; every rank must use the same."""


class StageMessage(NamedTuple):
    """The result of an operation, from or to another rank."""

    source: Operation
    """The operation that computes it."""
    peer: int
    """The other rank."""


@dataclass(frozen=True)
class StageExchange:
    """Messages that are in flight at the same time."""

    sends: tuple[StageMessage, ...]
    receives: tuple[StageMessage, ...]


Program = list[Operation | StageExchange]
"""Operations of a rank, and exchanges before and after them."""


class _Transfer(NamedTuple):
    """A message as all ranks see it; ascending transfers are in the order of all ranks."""

    sent_at: float
    sender: int
    receiver: int
    source: Operation
    consumer: Operation


def make_program(rank: int, orders: OperationOrders, devices: Sequence[Sequence[int]]) -> Program:
    """The program of a rank.

    Ranks have their messages in one order: by the simulated time at which they are computed. So
    nobody waits for ever, even if a send ends only when its receiver waits for it: the first
    message in this order is the next one of both of its ranks.

    Args:
        rank: whose program.
        orders: of all ranks.
        devices: per model the rank of each stage; a rank has at most one stage of a model.

    Raises:
        ValueError: the orders are a deadlock.
    """
    order = orders[rank]
    transfers = [
        item for item in _transfers(orders, devices) if rank in (item.sender, item.receiver)
    ]
    by_position = _transfers_by_position(rank, order, sorted(transfers))
    program: Program = []
    for position, operation in enumerate(order):
        if position in by_position:
            program.append(_exchange(rank, by_position[position]))
        program.append(operation)
    if len(order) in by_position:
        program.append(_exchange(rank, by_position[len(order)]))
    return program


def _transfers(orders: OperationOrders, devices: Sequence[Sequence[int]]) -> Iterator[_Transfer]:
    num_stages = [len(stages) for stages in devices]
    ends = end_times(orders, _seconds, num_stages)
    for receiver, order in enumerate(orders):
        for operation in order:
            source = predecessor(operation, num_stages[operation.pipeline])
            if source is not None and source.stage != operation.stage:
                sender = devices[source.pipeline][source.stage]
                yield _Transfer(ends[source], sender, receiver, source, operation)


def _seconds(operation: Operation) -> float:
    return BACKWARD_SECONDS if operation.is_backward else FORWARD_SECONDS


def _transfers_by_position(
    rank: int, order: Sequence[Operation], transfers: Sequence[_Transfer]
) -> Mapping[int, Sequence[_Transfer]]:
    """Sorted transfers by the number of operations before them."""
    index = {operation: number for number, operation in enumerate(order)}
    by_position: dict[int, list[_Transfer]] = {}
    # Backwards, since a receive that is before another message must not come after it. A result is
    # sent at once. It is received as late as possible, which leaves its sender the most time.
    latest = len(order)
    for transfer in reversed(transfers):
        if transfer.sender == rank:
            latest = index[transfer.source] + 1
        else:
            latest = min(latest, index[transfer.consumer])
        by_position.setdefault(latest, []).insert(0, transfer)
    return by_position


def _exchange(rank: int, transfers: Sequence[_Transfer]) -> StageExchange:
    return StageExchange(
        sends=tuple(StageMessage(t.source, t.receiver) for t in transfers if t.sender == rank),
        receives=tuple(StageMessage(t.source, t.sender) for t in transfers if t.receiver == rank),
    )
