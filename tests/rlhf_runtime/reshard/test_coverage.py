"""How many ranks hold a weight, and what is wrong where some hold more of it than others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Layout, Piece, check_copies, num_copies
from rlhf_runtime.reshard.slices import TensorSlice

WHOLE = TensorSlice.full((6, 4))
UPPER, LOWER = TensorSlice((0, 0), (4, 4)), TensorSlice((4, 0), (2, 4))
LEFT, RIGHT = TensorSlice((0, 0), (6, 1)), TensorSlice((0, 1), (6, 3))


def layout(*boxes_of_ranks: tuple[TensorSlice, ...]) -> Layout:
    pieces = tuple(tuple(Piece("w", box) for box in boxes) for boxes in boxes_of_ranks)
    return Layout({"w": (6, 4)}, pieces)


@pytest.mark.parametrize(
    ("ranks", "copies"),
    [
        (((UPPER,), (LOWER,)), 1),
        (((UPPER, LOWER),), 1),
        (((WHOLE,), (WHOLE,), (WHOLE,)), 3),
        (((UPPER,), (LOWER,), (LOWER,), (UPPER,)), 2),
        (((UPPER,), (LOWER,), (LEFT,), (RIGHT,)), 2),
        (((WHOLE,), (UPPER,), (), (LOWER,)), 2),
    ],
)
def test_copies(ranks: tuple[tuple[TensorSlice, ...], ...], copies: int) -> None:
    assert num_copies(layout(*ranks)) == {"w": copies}


def test_what_is_held_once_more_is_named() -> None:
    with pytest.raises(
        LayoutError, match=r"too many ranks: got TensorSlice\(start=\(4, 0\).*'w' .*on rank 2"
    ):
        num_copies(layout((UPPER,), (LOWER,), (LOWER,)))


def test_where_copies_do_not_come_out_even_the_first_that_is_too_much_is_named() -> None:
    """Two copies of the upper part, and of the lower one what lies at the left, twice."""
    with pytest.raises(
        LayoutError, match=r"too many ranks: got TensorSlice\(start=\(0, 0\), shape=\(4, 4\)"
    ):
        num_copies(layout((UPPER,), (LOWER,), (UPPER,), (TensorSlice((4, 0), (2, 1)),)))


def test_copies_are_those_that_are_wanted() -> None:
    two = layout((WHOLE,), (UPPER,), (LOWER,))
    check_copies(two, {"w": 2})
    with pytest.raises(
        LayoutError, match=r"on too few ranks: got TensorSlice\(start=\(0, 0\).*allowed on 3"
    ):
        check_copies(two, {"w": 3})
    with pytest.raises(LayoutError, match=r"too many ranks: got .*'w' once more on rank 1"):
        check_copies(two, {"w": 1})


def test_a_region_that_one_copy_lacks_is_named() -> None:
    with pytest.raises(
        LayoutError, match=r"on too few ranks: got TensorSlice\(start=\(4, 1\), shape=\(2, 3\)"
    ):
        check_copies(layout((WHOLE,), (UPPER,), (TensorSlice((4, 0), (2, 1)),)), {"w": 2})


BOXES = st.tuples(st.integers(0, 5), st.integers(0, 3)).flatmap(
    lambda start: st.tuples(st.integers(1, 6 - start[0]), st.integers(1, 4 - start[1])).map(
        lambda shape: TensorSlice(start, shape)
    )
)


@given(st.lists(st.lists(BOXES, max_size=3), max_size=4))
def test_copies_are_those_of_counting_elements(ranks: list[list[TensorSlice]]) -> None:
    """Beside one rank that holds the whole."""
    counts = np.ones((6, 4), dtype=int)
    kept = [tuple(boxes) for boxes in ranks]
    for boxes in kept:
        for box in boxes:
            counts[box.slices_in(WHOLE)] += 1
    made = layout((WHOLE,), *kept)
    if counts.min() == counts.max():
        assert num_copies(made) == {"w": counts.max()}
    else:
        with pytest.raises(LayoutError, match="on too many ranks"):
            num_copies(made)
