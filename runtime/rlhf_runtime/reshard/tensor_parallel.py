"""How tensor parallelism cuts the weights of a decoder, by their Hugging Face names.

Megatron and vLLM cut alike; what differs is how they arrange the parts. Used where a layout must be
known before an engine is there that could list its views.
"""

from __future__ import annotations

from rlhf_flow.planning.generation_memory import VOCABULARY_MULTIPLE
from rlhf_runtime.reshard.boxes import Box, cut
from rlhf_runtime.reshard.layout import Piece, Pieces

KEY_VALUE = ("k_proj", "v_proj")
ROWS = ("q_proj", *KEY_VALUE, "gate_proj", "up_proj")
COLUMNS = ("o_proj", "down_proj")
VOCABULARY = ("embed_tokens", "lm_head")


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
        Piece(name, _box(name, shape, index, size, num_key_value_heads))
        for name, shape in shapes.items()
    )


def _box(name: str, shape: tuple[int, ...], index: int, size: int, num_heads: int) -> Box:
    module, _, parameter = name.rpartition(".")
    kind = module.rpartition(".")[2]
    if kind in KEY_VALUE and num_heads < size:
        return cut(shape, 0, index * num_heads // size, num_heads)
    if kind in ROWS:
        return cut(shape, 0, index, size)
    if kind in COLUMNS and parameter == "weight":
        return cut(shape, 1, index, size)
    if kind in VOCABULARY:
        padded = -(-shape[0] // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        return _padded_rows(shape, index, -(-padded // size))
    return Box.whole(shape)


def _padded_rows(shape: tuple[int, ...], index: int, rows: int) -> Box:
    """The real ones of a part's rows."""
    first = min(index * rows, shape[0])
    return Box((first, *(0 for _ in shape[1:])), (min(rows, shape[0] - first), *shape[1:]))
