"""How training and generation cut the weights of a decoder over ranks, by Hugging Face names.

A part is some rows and some columns of a matrix; a vector is a matrix of one column. Megatron and
vLLM cut alike; what differs is how they arrange the parts. FSDP cuts every weight by rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

VOCABULARY_MULTIPLE = 64
"""vLLM pads the vocabulary to a multiple of this."""
KEY_VALUE = ("k_proj", "v_proj")
ROWS = ("q_proj", *KEY_VALUE, "gate_proj", "up_proj")
COLUMNS = ("o_proj", "down_proj")
VOCABULARY = ("embed_tokens", "lm_head")


class Part(NamedTuple):
    """What a rank holds of a weight; either may be empty."""

    rows: range
    columns: range

    def overlap(self, other: Part) -> int:
        """Elements that are in both."""
        return _common(self.rows, other.rows) * _common(self.columns, other.columns)

    @property
    def num_elements(self) -> int:
        """Elements that it has."""
        return len(self.rows) * len(self.columns)


def tensor_part(
    name: str, shape: Sequence[int], index: int, size: int, num_key_value_heads: int
) -> Part:
    """What one rank of a tensor-parallel group holds of a weight.

    Args:
        name: Hugging Face's.
        shape: of the whole weight.
        index: the rank's place in its group.
        size: ranks in the group; it divides what is cut.
        num_key_value_heads: where there are fewer than ranks, each is held by several ranks.

    Returns:
        What is not cut, such as a norm, whole.
    """
    module, _, parameter = name.rpartition(".")
    kind = module.rpartition(".")[2]
    rows, columns = whole(shape)
    if kind in KEY_VALUE and num_key_value_heads < size:
        return Part(_cut(rows, index * num_key_value_heads // size, num_key_value_heads), columns)
    if kind in ROWS:
        return Part(_cut(rows, index, size), columns)
    if kind in COLUMNS and parameter == "weight":
        return Part(rows, _cut(columns, index, size))
    if kind in VOCABULARY:
        share = padded_vocabulary(len(rows), size) // size
        return Part(rows[index * share : (index + 1) * share], columns)
    return Part(rows, columns)


def row_part(shape: Sequence[int], index: int, size: int) -> Part:
    """What one of FSDP's ranks holds of a weight; the last ones may have less, or nothing."""
    rows, columns = whole(shape)
    return Part(_cut(rows, index, size), columns)


def whole(shape: Sequence[int]) -> Part:
    """All of a weight."""
    rows, *columns = shape
    return Part(range(rows), range(*columns) if columns else range(1))


def padded_vocabulary(size: int, tensor: int) -> int:
    """Rows of an embedding or output projection over all ranks of a tensor group."""
    multiple = math.lcm(VOCABULARY_MULTIPLE, tensor)
    return -(-size // multiple) * multiple


def _cut(whole: range, index: int, num_parts: int) -> range:
    share = -(-len(whole) // num_parts)
    return whole[index * share : (index + 1) * share]


def _common(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))
