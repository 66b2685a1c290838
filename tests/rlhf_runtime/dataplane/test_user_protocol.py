"""A protocol of the user's own covers every row once on a mesh, or is told what it does instead."""

from __future__ import annotations

from itertools import product

import pytest

from rlhf_api.mesh import Mesh
from rlhf_runtime.dataplane.partition import Slice, contiguous_rows
from rlhf_runtime.dataplane.protocol import Protocol
from rlhf_runtime.dataplane.user_protocol import check_cover
from rlhf_runtime.errors import UserCodeFailed

from . import pairs
from .table_3 import GRIDS

TWO, CUBE = Mesh(pool="a", data=2), Mesh(pool="a", data=2, tensor=2, pipeline=2)


@pytest.mark.parametrize("name", ["BY_DATA", "MICRO", "ALL_RANKS", "BACKWARDS", "ON_FIRST"])
def test_what_covers_every_row_once_is_taken_on_every_grid(name: str) -> None:
    for mesh in GRIDS:
        check_cover(f"{pairs.MODULE}:{name}", mesh)


def test_parts_may_be_of_several_sizes() -> None:
    check_cover(f"{pairs.MODULE}:HALVING", Mesh(pool="a", data=4))
    check_cover(f"{pairs.MODULE}:BACKWARDS", Mesh(pool="a", first_rank=3, data=16))


MESH = r"\(data=\d+, tensor=\d+, pipeline=\d+\)"


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        ("ONE_REPLICA", TWO, "collects the rows from 1/2 to 1 of a batch from no rank"),
        ("ONE_REPLICA", TWO, f"on 2 ranks {MESH}: got rank 0: part 0 of 2, allo"),
        ("TENSOR_RANKS", CUBE, "rows from 0 to 1/2 of a batch from rank 0 and from rank 1, on 8"),
        ("TENSOR_RANKS", CUBE, "rank 4: part 1 of 2, rank 5: part 1 of 2"),
        ("ONE_TO_ALL", TWO, "collects all rows from rank 0 and from rank 1, on 2"),
        ("ONE_TO_ALL", Mesh(pool="a", data=16), "rank 7: part 0 of 1, 8 more, allowed"),
        ("STAGES", CUBE, "collects all rows from rank 0 and from rank 2, on 8"),
        ("NOBODY", TWO, "collects all rows from no rank, on .*: got no collected rank, allowed"),
        ("GAP", TWO, "collects the rows from 1/4 to 1/2 of a batch from no rank"),
        ("OVERLAP", TWO, "the rows from 1/3 to 1/2 of a batch from rank 0 and from rank 1"),
        ("RAISES", TWO, r"distribute .* raised LookupError: no rows for rank 0; correct it\nTrace"),
        ("RAISES_LATE", TWO, r"collect of the protocol \S+ raised LookupError: no rows for rank 0"),
        ("NO_SHARE", TWO, r"gives rank 0 no part of the rows: got range\(0, 4\), allowed Slice"),
        ("NO_PART", TWO, r"no part of the rows: got Slice\(index=2, count=2\)"),
        ("NO_NUMBER", TWO, r"no part of the rows: got Slice\(index=0.5, count=2\)"),
        ("NO_ANSWER", TWO, "the output of rank 0 counts: got 1, allowed True or False"),
        ("NOTHING", TWO, "protocol .*:NOTHING cannot be imported: got AttributeError"),
    ],
)
def test_what_does_not_is_told_with_ranks_and_rows(name: str, mesh: Mesh, message: str) -> None:
    entrypoint = f"{pairs.MODULE}:{name}"
    with pytest.raises(UserCodeFailed, match=message) as caught:
        check_cover(entrypoint, mesh)
    assert entrypoint in str(caught.value)


def test_it_is_taken_if_and_only_if_batches_of_every_size_are_covered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three ranks with any of these shares, against counting the rows of batches of up to 24
    prompts."""
    kinds = (Slice(0, 2), Slice(2, 4), Slice(3, 4), Slice(1, 2), Slice(5, 8))
    taken = 0
    for slices in product(kinds, repeat=3):
        counted = [
            (sorted(row for batch_slice in slices for row in rows_of(batch_slice, count)), count)
            for count in range(1, 25)
        ]
        expected = all(rows == list(range(2 * count)) for rows, count in counted)
        assert is_taken(slices, monkeypatch) == expected, slices
        taken += expected
    assert taken == 6, "a half and two quarters, in any order"


def rows_of(batch_slice: Slice, count: int) -> list[int]:
    """Two for each of so many prompts."""
    return contiguous_rows(range(count), 2, batch_slice).rows().tolist()


def is_taken(slices: tuple[Slice, ...], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether each rank may have its share."""
    given = Protocol(lambda at: slices[at.rank], pairs.on_all)
    monkeypatch.setattr(pairs, "GIVEN", given, raising=False)
    try:
        check_cover(f"{pairs.MODULE}:GIVEN", Mesh(pool="a", data=3))
    except UserCodeFailed:
        return False
    return True
