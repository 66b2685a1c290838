from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.reshard.boxes import Box, are_disjoint, covers
from rlhf_runtime.reshard.buckets import buckets, split
from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.plan import Move, ReshardPlan


def plan_of(moves: list[Move]) -> ReshardPlan:
    return ReshardPlan(4, tuple(moves), (), (0,) * 4, (0,) * 4, (0,) * 4)


moves = st.builds(
    lambda source, step, name, box: Move(source, (source + step) % 4, name, Box.whole(box)),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from("abcdefgh"),
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(moves, max_size=12), st.integers(1, 60))
def test_no_rank_stages_more_than_the_bound(planned: list[Move], max_elements: int) -> None:
    rounds = buckets(plan_of(planned), max_elements)
    for moves_of_round in rounds:
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for move in moves_of_round:
            sent[move.source_rank] += move.box.volume
            received[move.target_rank] += move.box.volume
        assert moves_of_round
        assert max(*sent.values(), *received.values()) <= max_elements
    whole = sum(move.box.volume for move in planned)
    assert sum(move.box.volume for of_round in rounds for move in of_round) == whole


@given(st.lists(st.integers(1, 7), max_size=3).map(tuple), st.integers(1, 50))
def test_a_split_box_is_its_disjoint_parts(shape: tuple[int, ...], max_elements: int) -> None:
    box = Box(tuple(range(len(shape))), shape)
    parts = list(split(box, max_elements))
    assert covers(parts, box)
    assert are_disjoint(parts)
    assert all(0 < part.volume <= max_elements for part in parts)


def test_everything_that_fits_goes_in_one_round() -> None:
    planned = [Move(0, 1, "a", Box.whole((4,))), Move(1, 0, "a", Box.whole((4,)))]
    assert buckets(plan_of(planned), 4) == (tuple(planned),)
    assert buckets(plan_of([]), 4) == ()


def test_a_bucket_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="got 0 elements"):
        buckets(plan_of([]), 0)
