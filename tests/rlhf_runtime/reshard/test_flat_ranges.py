"""Ranges of flattened parameters as boxes, against the numbers of all elements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.slices import TensorSlice, are_disjoint, covers
from rlhf_runtime.reshard.views import FlatShard, View, Views, flat_range_views


def numbered(*shape: int) -> torch.Tensor:
    """Every element is its number in the flattened tensor; it is part of a larger storage."""
    count = torch.Size(shape).numel()
    return torch.arange(-3.0, count + 4)[3 : 3 + count].view(shape)


def cut_at(parameter: torch.Tensor, cuts: list[int]) -> list[FlatShard]:
    """Ranges of a parameter, each in storage of its own that begins with something else."""
    ends = [0, *cuts, parameter.numel()]
    flat = parameter.flatten()
    return [
        FlatShard(torch.cat([torch.full((2,), -1.0), flat[a:b]])[2:].double(), a)
        for a, b in zip(ends, ends[1:], strict=False)
    ]


@st.composite
def parameters(draw: st.DrawFn) -> tuple[torch.Tensor, Views]:
    """Parameters of one to three dimensions, with slices that may leave parts out, each somewhere
    in its full tensor."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    parameter, views = numbered(*shape), dict[str, list[View]]()
    rows = sorted(draw(st.lists(st.integers(0, shape[0]), min_size=1, max_size=4)))
    for number, (first, last) in enumerate(zip(rows, [*rows[1:], shape[0]], strict=True)):
        part = parameter[first:last]
        for dim in range(1, len(shape)):
            if draw(st.booleans()):
                low = draw(st.integers(0, shape[dim] - 1))
                part = part.narrow(dim, low, draw(st.integers(1, shape[dim] - low)))
        start = tuple(draw(st.integers(0, 9)) for _ in shape)
        box = TensorSlice((start[0] + 20 * number, *start[1:]), tuple(part.shape))
        views.setdefault(draw(st.sampled_from("ab")), []).append(View(part, box))
    return parameter, views


@given(parameters(), st.data())
def test_ranges_hold_exactly_their_elements(
    given_parameter: tuple[torch.Tensor, Views], data: st.DataObject
) -> None:
    parameter, views = given_parameter
    cuts = st.lists(st.integers(0, parameter.numel()), max_size=3)
    shards = cut_at(parameter, sorted(data.draw(cuts)))
    found = [flat_range_views(parameter, views, shard) for shard in shards]
    for name, parts in views.items():
        pieces = [view for each in found for view in each.get(name, ())]
        assert are_disjoint([piece.box for piece in pieces])
        for tensor, box in parts:
            own = [piece for piece in pieces if box.contains(piece.box)]
            assert covers([piece.box for piece in own], box)
            for piece in own:
                assert torch.equal(piece.tensor, tensor[piece.box.slices_in(box)].double())
    for shard, held in zip(shards, found, strict=True):
        memory = shard.tensor.untyped_storage().data_ptr()
        for pieces_of_name in held.values():
            assert pieces_of_name, "names without an element are left out"
            assert all(p.tensor.untyped_storage().data_ptr() == memory for p in pieces_of_name)
            assert all(piece.box.volume for piece in pieces_of_name)


def test_a_range_of_a_matrix_is_part_of_a_row_whole_rows_and_part_of_a_row() -> None:
    """Columns 8 to 11 of a tensor of 16 columns, of which elements 6 to 18 are here."""
    parameter = numbered(6, 4)
    views = {"w": [View(parameter, TensorSlice((0, 8), (6, 4)))]}
    shard = FlatShard(torch.arange(6.0, 19.0), 6)
    (parts,) = flat_range_views(parameter, views, shard).values()
    assert [(box, tensor.tolist()) for tensor, box in parts] == [
        (TensorSlice((1, 10), (1, 2)), [[6, 7]]),
        (TensorSlice((2, 8), (2, 4)), [[8, 9, 10, 11], [12, 13, 14, 15]]),
        (TensorSlice((4, 8), (1, 3)), [[16, 17, 18]]),
    ]
    parts[1].tensor.zero_()
    assert shard.tensor.tolist() == [6, 7, *[0] * 8, 16, 17, 18]


def test_a_range_within_a_row_and_one_between_the_rows_of_a_view() -> None:
    parameter = numbered(3, 8)
    views = {"w": [View(parameter[:, :3], TensorSlice((0, 0), (3, 3)))]}
    (parts,) = flat_range_views(parameter, views, FlatShard(torch.tensor([9.0]), 9)).values()
    assert [(box, tensor.tolist()) for tensor, box in parts] == [
        (TensorSlice((1, 1), (1, 1)), [[9]])
    ]
    assert flat_range_views(parameter, views, FlatShard(torch.zeros(5), 11)) == {}
    assert flat_range_views(parameter, views, FlatShard(torch.zeros(0), 9)) == {}


def test_a_scalar_is_one_element() -> None:
    parameter = torch.tensor(5.0)
    views = {"s": [View(parameter, TensorSlice((), ()))]}
    (part,) = flat_range_views(parameter, views, FlatShard(torch.tensor([5.0]), 0))["s"]
    assert part.tensor.shape == () and float(part.tensor) == 5
    assert flat_range_views(parameter, views, FlatShard(torch.zeros(0), 0)) == {}


@pytest.mark.parametrize(
    ("parameter", "shard", "message"),
    [
        (numbered(4, 3), FlatShard(torch.zeros(3), 10), "elements 10 to 13, allowed 0 to 12"),
        (numbered(4, 3), FlatShard(torch.zeros(3), -1), "elements -1 to 2"),
        (numbered(4, 3).T, FlatShard(torch.zeros(3), 0), "not contiguous"),
        (numbered(4, 3), FlatShard(torch.zeros(3, 1), 0), "the shard is not flat"),
        (numbered(4, 3), FlatShard(torch.zeros(6)[::2], 0), "not contiguous"),
    ],
)
def test_shards_that_are_none_are_refused(
    parameter: torch.Tensor, shard: FlatShard, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        flat_range_views(parameter, {}, shard)


def test_views_that_are_no_rows_of_the_parameter_are_refused() -> None:
    storage = torch.zeros(6, 3)
    parameter = storage[1:5]
    for view in (
        torch.zeros(4, 3),  # other storage
        parameter[:2].T,  # columns first
        parameter.as_strided((3, 3), (2, 1)),  # rows that overlap
        storage[:3],  # from before it
        storage[3:],  # to beyond it
    ):
        views = {"w": [View(view, TensorSlice.full(tuple(view.shape)))]}
        with pytest.raises(LayoutError, match="view of 'w'"):
            flat_range_views(parameter, views, FlatShard(torch.zeros(12), 0))
