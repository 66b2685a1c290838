"""Rounds: a rank's moves in groups of bounded size. Pure; both ranks of a move agree on its round.

The busiest rank of each tensor determines the rounds. So a rank needs only its own moves, no rank
waits for one that is in another round, and memory in flight is bounded on all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rlhf_runtime.reshard.errors import InvalidReshard
from rlhf_runtime.reshard.plan import Move, ReshardPlan, Route
from rlhf_runtime.reshard.slices import TensorSlice


class Round(NamedTuple):
    """Moves of one rank that are in flight together."""

    forwards: bool
    """True if moves start from target pieces that an earlier round has filled."""
    moves: tuple[Move, ...]
    """In the same order on sender and receiver."""


def plan_rounds(plan: ReshardPlan, rank: int, max_elements: int) -> list[Round]:
    """A rank's moves in rounds, without rounds in which it is idle.

    In a round no rank sends and receives more than `max_elements` together. A tensor of which a
    rank moves more than that is split.

    Args:
        plan: the plan.
        rank: whose moves.
        max_elements: bound of the elements that a rank sends and receives in a round.

    Returns:
        First the rounds of direct moves, then those that forward.

    Raises:
        InvalidReshard: max_elements is below 1.
    """
    if max_elements < 1:
        raise InvalidReshard(
            f"a bucket must hold something: got {max_elements} elements, allowed 1 or more"
        )
    direct = [(batch.names, batch.direct) for batch in plan.batches]
    forwarded = [(batch.names, batch.forwarded) for batch in plan.batches]
    return [
        Round(forwards, tuple(moves))
        for forwards, batches in ((False, direct), (True, forwarded))
        for moves in _fill_rounds(batches, rank, max_elements)
        if moves
    ]


Batches = Iterable[tuple[Sequence[str], Sequence[Route]]]


def _fill_rounds(batches: Batches, rank: int, max_elements: int) -> Iterator[list[Move]]:
    """Fill each round with complete tensors; a tensor above the bound gets rounds of its own."""
    current: list[Move] = []
    filled = 0
    for names, routes in batches:
        volume = _busiest_volume(routes)
        if volume > max_elements:
            # Ends the current round on all ranks, whether or not they have a part of this tensor.
            yield current
            current, filled = [], 0
            parts = _split_routes(routes, rank, max_elements)
            yield from (_moves(name, own) for name in names for own in parts)
            continue
        own = [route for route in routes if rank in (route.source_rank, route.target_rank)]
        for name in names:
            # Counts the busiest rank's volume, not this rank's: so all ranks cut rounds alike.
            if filled + volume > max_elements:
                yield current
                current, filled = [], 0
            current.extend(_moves(name, own))
            filled += volume
    yield current


def _moves(name: str, routes: Iterable[Route]) -> list[Move]:
    return [Move(source, target, name, box) for source, target, box in routes]


def _busiest_volume(routes: Sequence[Route]) -> int:
    """Elements of a tensor that the busiest rank sends and receives."""
    moved: Counter[int] = Counter()
    for source, target, box in routes:
        volume = box.volume
        moved[source] += volume
        moved[target] += volume
    return max(moved.values(), default=0)


def _split_routes(routes: Sequence[Route], rank: int, max_elements: int) -> list[list[Route]]:
    """A rank's parts of a tensor by round: first fit for the sender's and the receiver's capacity.

    The rounds are those of every tensor on these routes.
    """
    # All routes are assigned, not only this rank's: so every rank derives the same rounds.
    own: defaultdict[int, list[Route]] = defaultdict(list)
    moved: list[Counter[int]] = []
    for source, target, box in routes:
        for part in split(box, max_elements):
            number = _first_free_round(moved, source, target, part.volume, max_elements)
            moved[number][source] += part.volume
            moved[number][target] += part.volume
            if rank in (source, target):
                own[number].append(Route(source, target, part))
    return [own[number] for number in range(len(moved))]


def _first_free_round(
    moved: list[Counter[int]], source: int, target: int, volume: int, max_elements: int
) -> int:
    for number, volumes in enumerate(moved):
        if max(volumes[source], volumes[target]) + volume <= max_elements:
            return number
    moved.append(Counter())
    return len(moved) - 1


def split(box: TensorSlice, max_elements: int) -> Iterator[TensorSlice]:
    """Cut a box along its first dimensions into disjoint boxes of at most `max_elements`."""
    volume = box.volume
    if volume <= max_elements:
        yield box
        return
    dim = next(dim for dim, length in enumerate(box.shape) if length > 1)
    length = box.shape[dim]
    # As many full rows as fit; if one row is too large, single rows are split further.
    step = max(1, max_elements // (volume // length))
    for offset in range(0, length, step):
        start, shape = list(box.start), list(box.shape)
        start[dim] += offset
        shape[dim] = min(step, length - offset)
        yield from split(TensorSlice(tuple(start), tuple(shape)), max_elements)
