"""Batches for the tests of the data plane: indexes, and random ways to cut them in shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.shards import ShardIndex


def rows_of(numbers: Sequence[int]) -> Rows:
    """Row numbers as the data plane wants them."""
    return np.array(numbers, dtype=np.int64)


def index_of(lengths: Sequence[int], groups: Sequence[int] | None = None) -> ShardIndex:
    """All rows of a batch in order; without groups every row is a group of its own."""
    return ShardIndex(
        rows_of(range(len(lengths))),
        rows_of(range(len(lengths)) if groups is None else groups),
        np.array(lengths, dtype=np.int32),
    )


@st.composite
def shardings(draw: st.DrawFn, max_rows: int = 12, max_shards: int = 4) -> list[Rows]:
    """Rows 0 .. n-1 in any order, cut into shards at any places; some may be empty."""
    order = draw(st.permutations(range(draw(st.integers(0, max_rows)))))
    places = st.lists(st.integers(0, len(order)), max_size=max_shards - 1).map(sorted)
    cuts = [0, *draw(places), len(order)]
    return [rows_of(order[begin:end]) for begin, end in zip(cuts, cuts[1:], strict=False)]


@st.composite
def grouped_indexes(draw: st.DrawFn, max_groups: int = 12) -> ShardIndex:
    """Groups of neighbours, one to four rows each, with any lengths and any group numbers."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=max_groups))
    numbers = draw(st.permutations(range(3, 3 + len(sizes))))
    groups = [group for group, size in zip(numbers, sizes, strict=True) for _ in range(size)]
    lengths = draw(st.lists(st.integers(0, 40), min_size=len(groups), max_size=len(groups)))
    return index_of(lengths, groups)
