"""A rank's moves in rounds of bounded size. Pure; the two ends of a move agree on its round.

Rounds follow from what the busiest rank sends and receives of each tensor. So a rank needs its own
moves only, no rank waits for one that is in another round, and memory for what is under way is
bounded on all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.plan import Move, ReshardPlan, Route
from rlhf_runtime.reshard.slices import TensorSlice


class Round(NamedTuple):
    """What a rank sends and receives at a time."""

    forwards: bool
    """Whether it is sent from target pieces that an earlier round has filled."""
    moves: tuple[Move, ...]
    """In the same order on sender and receiver."""


def rounds_of(plan: ReshardPlan, rank: int, max_elements: int) -> list[Round]:
    """A rank's moves in rounds; rounds in which it does nothing are left out.

    In each round every rank sends and receives at most `max_elements` together. A tensor of which a
    rank moves more than that is split.

    Args:
        plan: the plan.
        rank: whose moves.
        max_elements: bound of what a rank sends and receives in a round.

    Returns:
        First the rounds of direct moves, then those that forward.

    Raises:
        PlanError: max_elements is below 1.
    """
    if max_elements < 1:
        raise PlanError(
            f"a bucket must hold something: got {max_elements} elements, allowed 1 or more"
        )
    direct = [(batch.names, batch.direct) for batch in plan.batches]
    forwarded = [(batch.names, batch.forwarded) for batch in plan.batches]
    return [
        Round(forwards, tuple(moves))
        for forwards, batches in ((False, direct), (True, forwarded))
        for moves in _filled(batches, rank, max_elements)
        if moves
    ]


Batches = Iterable[tuple[Sequence[str], Sequence[Route]]]


def _filled(batches: Batches, rank: int, max_elements: int) -> Iterator[list[Move]]:
    """Whole tensors, as many as fit into a round; tensors that are too large in their own."""
    current: list[Move] = []
    filled = 0
    for names, routes in batches:
        busiest = _busiest(routes)
        if busiest > max_elements:
            yield current
            current, filled = [], 0
            parts = _split_routes(routes, rank, max_elements)
            yield from (_moves(name, own) for name in names for own in parts)
            continue
        own = [route for route in routes if rank in (route.source_rank, route.target_rank)]
        for name in names:
            if filled + busiest > max_elements:
                yield current
                current, filled = [], 0
            current.extend(_moves(name, own))
            filled += busiest
    yield current


def _moves(name: str, routes: Iterable[Route]) -> list[Move]:
    return [Move(source, target, name, box) for source, target, box in routes]


def _busiest(routes: Sequence[Route]) -> int:
    """Elements of a tensor that the busiest rank sends and receives."""
    moved: Counter[int] = Counter()
    for source, target, box in routes:
        volume = box.volume
        moved[source] += volume
        moved[target] += volume
    return max(moved.values(), default=0)


def _split_routes(routes: Sequence[Route], rank: int, max_elements: int) -> list[list[Route]]:
    """A rank's parts of a tensor by round: each in the first in which both of its ranks have room.

    The rounds are those of every tensor that goes these routes.
    """
    own: defaultdict[int, list[Route]] = defaultdict(list)
    moved: list[Counter[int]] = []
    for source, target, whole in routes:
        for box in split(whole, max_elements):
            number = _first_with_room(moved, source, target, box.volume, max_elements)
            moved[number][source] += box.volume
            moved[number][target] += box.volume
            if rank in (source, target):
                own[number].append(Route(source, target, box))
    return [own[number] for number in range(len(moved))]


def _first_with_room(
    moved: list[Counter[int]], source: int, target: int, volume: int, max_elements: int
) -> int:
    for number, of_round in enumerate(moved):
        if max(of_round[source], of_round[target]) + volume <= max_elements:
            return number
    moved.append(Counter())
    return len(moved) - 1


def split(box: TensorSlice, max_elements: int) -> Iterator[TensorSlice]:
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
        yield from split(TensorSlice(tuple(start), tuple(shape)), max_elements)
