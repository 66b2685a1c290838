"""What a layer computes, reads and writes on one rank: counts from a model's dimensions.

With h the hidden size, q and kv the widths of all query and of all key heads, i the width of the
feed-forward layer, b the bytes of a number and t the ranks that share the layer:

    weights      h (q + 2 kv) + q h + 3 h i, over t: multiply-adds of a token. Keys and values of
                 fewer heads than ranks are held several times (key_value_heads_per_rank).
    widths       numbers that products of matrices read and write for a token, weights apart:
                 (h + (q + 2 kv)/t) + (q/t + h) + (h + 2i/t) + (i/t + h)
    attention    4 q/t FLOP for each pair of tokens: scores, and the sum of values
                 (FlashAttention-2, arXiv 2307.08691, section 4.1)

Elementwise kernels move bytes. PyTorch runs each operation of Hugging Face's Llama by itself:

    norm         28 bytes per number of its input: squared (8), averaged (4), scaled (8), times the
                 weight (8); in bfloat16 36: times the weight (4), and two casts (6 each)
    rotary       10 b per number of queries and keys: two products (2b each), the halves swapped
                 (3b), the sum (3b)
    residual     3 b per number, twice;  SiLU and product: 5 b per number of i

Megatron's layers do about the same here, as its own norms need kernels that are built on GPUs
(docs/adr/0020-megatron-computes-torch-optimizes.md). vLLM has one kernel for each: norm with
residual (4 b), rotary in place (2 b), the cache's write (4 b for each key or value), SiLU and
product (3 b).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rlhf_flow.planning.generation_memory import key_value_heads_per_rank
from rlhf_flow.planning.megatron_memory import vocabulary_rows
from rlhf_flow.planning.memory import FLOAT32_BYTES
from rlhf_flow.planning.seconds.layers import LayerCut
from rlhf_flow.planning.shapes import DecoderShape

RESIDUALS = 2
"""Sums with the residual stream in a block."""
EAGER_KERNELS, NORM_KERNELS = 23, 6
"""Kernels of a block's forward pass in PyTorch, without norms; and of a norm. Counted by hand in
transformers' Llama: 7 products, 10 of rotary positions, 2 of attention, 2 of the activation, 2 of
the residuals."""
FUSED_KERNELS = 10
"""Kernels of a block in vLLM: 4 products, 2 norms, and one each for rotary positions, the cache's
write, attention and the activation."""


class BlockCounts(NamedTuple):
    """Of one block on a rank."""

    weights: float
    """Multiply-adds of a token, and numbers of the weights."""
    widths: float
    """Numbers that products of matrices read and write for a token, beside weights."""
    pair_flops: float
    """FLOP of attention for each pair of tokens."""
    attention_width: float
    """Numbers that attention reads and writes for a token."""
    eager_bytes: float
    """Bytes of a token that elementwise kernels move in PyTorch."""
    fused_bytes: float
    """The same in vLLM."""
    cached_bytes: float
    """Bytes of a token's keys and values."""
    kernels: int
    """That PyTorch launches for a forward pass."""


class TableCounts(NamedTuple):
    """Of the embedding, or of the output projection, on a rank."""

    hidden: int
    rows: float
    """Of the vocabulary, that the rank has."""


@lru_cache(maxsize=4096)
def block_counts(shape: DecoderShape, number_bytes: int, cut: LayerCut) -> BlockCounts:
    """Counts of a block.

    Args:
        shape: of the model.
        number_bytes: of a number in the computation.
        cut: how the block is cut.
    """
    tensor, hidden = cut.tensor, shape.hidden_size
    query = shape.query_size / tensor
    key = key_value_heads_per_rank(shape, tensor) * shape.head_dim
    middle = shape.intermediate_size / tensor
    norms = shape.norms_per_layer
    heads_norm = query + key if shape.query_key_norm else 0
    own = hidden / (tensor if cut.sequence_parallel else 1)
    norm, number = norm_bytes(number_bytes), number_bytes
    return BlockCounts(
        weights=hidden * (2 * query + 2 * key) + 3 * hidden * middle,
        widths=4 * hidden + 2 * query + 2 * key + 3 * middle,
        pair_flops=4 * query,
        attention_width=2 * query + 2 * key,
        eager_bytes=(norms * own + heads_norm) * norm
        + (RESIDUALS * 3 * own + 10 * (query + key) + 5 * middle) * number,
        fused_bytes=(4 * norms * hidden + 2 * (query + key) + 4 * 2 * key + 3 * middle) * number,
        cached_bytes=2 * key * number,
        kernels=EAGER_KERNELS + NORM_KERNELS * (norms + (2 if shape.query_key_norm else 0)),
    )


@lru_cache(maxsize=4096)
def table_counts(shape: DecoderShape, cut: LayerCut) -> TableCounts:
    """Counts of the embedding, and of the output projection."""
    return TableCounts(shape.hidden_size, vocabulary_rows(shape, cut.tensor))


def norm_bytes(number_bytes: int) -> int:
    """Bytes that PyTorch moves for each number of a norm's input."""
    casts = 0 if number_bytes == FLOAT32_BYTES else 2 * (FLOAT32_BYTES + number_bytes)
    return 8 + 4 + 8 + 2 * number_bytes + casts
