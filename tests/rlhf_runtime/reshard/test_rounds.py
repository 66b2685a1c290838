from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.reshard.errors import InvalidReshard
from rlhf_runtime.reshard.plan import Move, ReshardPlan, Route, TensorBatch
from rlhf_runtime.reshard.rounds import Round, plan_rounds, split
from rlhf_runtime.reshard.slices import TensorSlice, are_disjoint, covers
from rlhf_runtime.reshard.topology import Topology, Traffic

from ...depth import examples


def plan_of(batches: list[TensorBatch]) -> ReshardPlan:
    none = (0,) * 4
    return ReshardPlan(Topology.regular(4), tuple(batches), Traffic(none, none, none, none, none))


routes = st.builds(
    lambda source, step, box: Route(source, (source + step) % 4, TensorSlice.full(box)),
    st.integers(0, 3),
    st.integers(1, 3),
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
)
batches_of_alike = st.builds(
    lambda number, prefix, direct, forwarded: TensorBatch(
        tuple(f"{prefix}{i}" for i in range(number)), (), tuple(direct), tuple(forwarded)
    ),
    st.integers(1, 4),
    st.sampled_from("ab"),
    st.lists(routes, max_size=5),
    st.lists(routes, max_size=2),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(batches_of_alike, max_size=4), st.integers(1, 60))
def test_no_rank_moves_more_at_once_than_the_bound(planned: list[TensorBatch], bound: int) -> None:
    plan = plan_of(planned)
    for rank in range(4):
        rounds = plan_rounds(plan, rank, bound)
        for _, moves in rounds:
            assert moves
            assert all(rank in (move.source_rank, move.target_rank) for move in moves)
            assert sum(move.box.volume for move in moves) <= bound
        for forwards, expected in ((False, plan.direct), (True, plan.forwarded)):
            own = [move for move in expected if rank in (move.source_rank, move.target_rank)]
            parts = [m for round_ in rounds if round_.forwards == forwards for m in round_.moves]
            assert volumes(parts) == volumes(own)


def volumes(moves: list[Move]) -> Counter[tuple[int, int, str]]:
    """Elements by sender, receiver and tensor."""
    total: Counter[tuple[int, int, str]] = Counter()
    for source, target, name, box in moves:
        total[source, target, name] += box.volume
    return total


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(batches_of_alike, max_size=4), st.integers(1, 60))
def test_both_ends_see_the_same_messages_in_rounds_that_never_wait_for_each_other(
    planned: list[TensorBatch], bound: int
) -> None:
    plan = plan_of(planned)
    rounds = [plan_rounds(plan, rank, bound) for rank in range(4)]
    shared = {(one, other): with_peer(rounds[one], one, other) for one, other in PAIRS}
    for one, other in PAIRS:
        there, back = shared[one, other], shared[other, one]
        assert [moves for _, moves in there] == [moves for _, moves in back]
    reached = [0] * 4
    while any(reached[rank] < len(rounds[rank]) for rank in range(4)):
        able = [
            rank
            for rank in range(4)
            if reached[rank] < len(rounds[rank])
            and all(
                reached[peer] >= place
                for (one, peer) in PAIRS
                if one == rank
                for (own, _), (place, _) in zip(shared[one, peer], shared[peer, one], strict=True)
                if own == reached[rank]
            )
        ]
        assert able, "ranks wait for each other"
        for rank in able:
            reached[rank] += 1


PAIRS = [(one, other) for one in range(4) for other in range(4) if one != other]


def with_peer(rounds: list[Round], rank: int, peer: int) -> list[tuple[int, list[Move]]]:
    """The rounds in which a rank meets another, with their numbers and what they exchange."""
    met = [
        (number, [m for m in moves if {m.source_rank, m.target_rank} == {rank, peer}])
        for number, (_, moves) in enumerate(rounds)
    ]
    return [(number, moves) for number, moves in met if moves]


@given(st.lists(st.integers(1, 7), max_size=3).map(tuple), st.integers(1, 50))
def test_a_split_box_is_its_disjoint_parts(shape: tuple[int, ...], max_elements: int) -> None:
    box = TensorSlice(tuple(range(len(shape))), shape)
    parts = list(split(box, max_elements))
    assert covers(parts, box)
    assert are_disjoint(parts)
    assert all(0 < part.volume <= max_elements for part in parts)


def test_everything_that_fits_goes_in_one_round() -> None:
    there_and_back = (Route(0, 1, TensorSlice.full((4,))), Route(1, 0, TensorSlice.full((4,))))
    plan = plan_of([TensorBatch(("a", "b"), (), there_and_back, ())])
    assert plan_rounds(plan, 0, 16) == [Round(False, plan.direct)]
    assert [len(round_.moves) for round_ in plan_rounds(plan, 0, 15)] == [2, 2]
    assert plan_rounds(plan, 2, 16) == plan_rounds(plan_of([]), 0, 4) == []


def test_a_bucket_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidReshard, match="got 0 elements"):
        plan_rounds(plan_of([]), 0, 0)
