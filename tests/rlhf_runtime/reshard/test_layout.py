import pytest

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice

SHAPES = {"a": (4, 2), "b": (3,)}
WHOLE_A, WHOLE_B = Piece("a", TensorSlice.full((4, 2))), Piece("b", TensorSlice.full((3,)))


def test_replicas_and_empty_pieces_are_allowed() -> None:
    empty = Piece("b", shard_slice((3,), 0, 3, 4))
    layout = Layout(SHAPES, ((WHOLE_A, WHOLE_B), (WHOLE_A, empty), ()))
    assert layout.world_size == 3
    assert [layout.num_elements(rank) for rank in range(3)] == [11, 8, 0]
    assert {f.names: f.holders for f in layout.groups} == {
        ("a",): {WHOLE_A.box: (0, 1)},
        ("b",): {WHOLE_B.box: (0,)},
    }


def test_a_part_that_nobody_holds_is_named() -> None:
    with pytest.raises(LayoutError, match=r"'a' of shape \(4, 2\) is incomplete.*start=\(2, 0\)"):
        Layout(SHAPES, ((Piece("a", TensorSlice((0, 0), (2, 2))), WHOLE_B), ()))


@pytest.mark.parametrize(
    "box",
    [
        TensorSlice((3, 0), (2, 2)),
        TensorSlice((-1, 0), (2, 2)),
        TensorSlice((0,), (4,)),
        TensorSlice((0, 0), (4, -1)),
    ],
)
def test_a_piece_outside_its_tensor_is_named_with_its_rank(box: TensorSlice) -> None:
    with pytest.raises(
        LayoutError, match=r"outside its tensor: got TensorSlice.* of 'a' on rank 1"
    ):
        Layout(SHAPES, ((WHOLE_A, WHOLE_B), (Piece("a", box),)))


def test_a_piece_of_no_tensor_is_named_with_its_rank() -> None:
    with pytest.raises(LayoutError, match="unknown tensor: got 'c' on rank 0"):
        Layout(SHAPES, ((WHOLE_A, WHOLE_B, Piece("c", TensorSlice.full((1,)))),))


def test_tensors_that_all_ranks_hold_alike_are_a_family() -> None:
    shapes = {"a": (4, 2), "b": (4, 2), "c": (4, 2), "d": (2, 4)}
    top, bottom = TensorSlice((0, 0), (2, 2)), TensorSlice((2, 0), (2, 2))
    first = (
        Piece("b", top),
        Piece("a", top),
        Piece("c", bottom),
        Piece("d", TensorSlice.full((2, 4))),
    )
    second = (Piece("a", bottom), Piece("b", bottom), Piece("c", top))
    layout = Layout(shapes, (first, second, first))
    assert [group.names for group in layout.groups] == [("a", "b"), ("c",), ("d",)]
    assert layout.groups[0].holders == {top: (0, 2), bottom: (1,)}
    assert layout.groups[1].holders == {bottom: (0, 2), top: (1,)}
    assert layout == Layout(shapes, (first, second, tuple(list(first))))
