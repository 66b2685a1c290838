import pytest

from rlhf_runtime.reshard.boxes import Box, cut
from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Layout, Piece

SHAPES = {"a": (4, 2), "b": (3,)}
WHOLE_A, WHOLE_B = Piece("a", Box.whole((4, 2))), Piece("b", Box.whole((3,)))


def test_replicas_and_empty_pieces_are_allowed() -> None:
    empty = Piece("b", cut((3,), 0, 3, 4))
    layout = Layout(SHAPES, ((WHOLE_A, WHOLE_B), (WHOLE_A, empty), ()))
    assert layout.world_size == 3
    assert [layout.num_elements(rank) for rank in range(3)] == [11, 8, 0]
    assert layout.holders() == {"a": {WHOLE_A.box: (0, 1)}, "b": {WHOLE_B.box: (0,)}}


def test_a_part_that_nobody_holds_is_named() -> None:
    with pytest.raises(
        LayoutError, match=r"'a' of shape \(4, 2\) is not fully held.*start=\(2, 0\)"
    ):
        Layout(SHAPES, ((Piece("a", Box((0, 0), (2, 2))), WHOLE_B), ()))


@pytest.mark.parametrize(
    "box", [Box((3, 0), (2, 2)), Box((-1, 0), (2, 2)), Box((0,), (4,)), Box((0, 0), (4, -1))]
)
def test_a_piece_outside_its_tensor_is_named_with_its_rank(box: Box) -> None:
    with pytest.raises(LayoutError, match=r"outside its tensor: got Box.* of 'a' on rank 1"):
        Layout(SHAPES, ((WHOLE_A, WHOLE_B), (Piece("a", box),)))


def test_a_piece_of_no_tensor_is_named_with_its_rank() -> None:
    with pytest.raises(LayoutError, match="unknown tensor: got 'c' on rank 0"):
        Layout(SHAPES, ((WHOLE_A, WHOLE_B, Piece("c", Box.whole((1,)))),))
