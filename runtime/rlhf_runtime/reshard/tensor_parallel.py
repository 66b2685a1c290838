"""The pieces of a tensor-parallel group, for layouts of engines that are not there."""

from __future__ import annotations

from rlhf_decoder.weights import tensor_part
from rlhf_runtime.reshard.layout import Piece, Pieces
from rlhf_runtime.reshard.slices import TensorSlice


def tensor_parallel_pieces(
    shapes: dict[str, tuple[int, ...]], index: int, size: int, num_key_value_heads: int
) -> Pieces:
    """What one rank of a tensor-parallel group holds.

    Args:
        shapes: the full shapes, by Hugging Face name.
        index: the rank's place in its group.
        size: ranks in the group; it divides what is cut.
        num_key_value_heads: where there are fewer than ranks, each is held by several ranks.

    Returns:
        One piece of every tensor. What is not cut, such as norms, is held by all.
    """
    return tuple(
        Piece(name, _box(shape, *tensor_part(name, shape, index, size, num_key_value_heads)))
        for name, shape in shapes.items()
    )


def _box(shape: tuple[int, ...], rows: range, columns: range) -> TensorSlice:
    """The part of a vector or of a matrix as a box."""
    cut = (rows, columns)[: len(shape)]
    return TensorSlice(tuple(each.start for each in cut), tuple(map(len, cut)))
