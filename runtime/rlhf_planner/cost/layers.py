"""Times of a layer on one rank: the interface between the time model and the source of its numbers.

`AnalyticLayers`, from data sheets, and measured profiles implement it. The rest of the model asks
nothing else of a device's computation, so a profile has to measure three kinds of layers in five
ways, over tokens and sizes of tensor groups.

Source of the choice of kinds: ReaL (arXiv 2406.14088), its profiler-assisted estimator.

Counts of a layer's work on one rank follow from a model's dimensions. With h the hidden size, q and
kv the widths of all query and of all key heads, i the width of the feed-forward layer, b the bytes
of a number and t the ranks that share the layer:

    weights      h (q + 2 kv) + q h + 3 h i, over t: multiply-adds of a token. Keys and values of
                 fewer heads than ranks are replicated (key_value_heads_per_rank).
    widths       numbers that products of matrices read and write for a token, without weights:
                 (h + (q + 2 kv)/t) + (q/t + h) + (h + 2i/t) + (i/t + h)
    attention    4 q/t FLOP for each pair of tokens: scores, and the sum of values
                 (FlashAttention-2, arXiv 2307.08691, section 4.1)

Elementwise kernels move bytes: many in PyTorch, which runs each operation of Hugging Face's Llama
by itself, fewer in vLLM, which has one kernel for each group of operations. Megatron's layers count
as those of PyTorch, as its own norms need kernels that are built on GPUs
(docs/adr/0020-megatron-computes-torch-optimizes.md).
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

from rlhf_planner.memory.generation import key_value_heads_per_rank
from rlhf_planner.memory.megatron import vocabulary_rows
from rlhf_planner.memory.role_model import FLOAT32_BYTES
from rlhf_sizing.shape import DecoderShape


class LayerKind(StrEnum):
    """The kinds of layers of a decoder."""

    EMBEDDING = "embedding"
    """Tokens to vectors."""
    BLOCK = "block"
    """Attention and feed-forward, with their norms."""
    HEAD = "head"
    """The output projection and the work on its logits. A scalar head takes nothing compared to a
    block, and is left out."""


class LayerCut(NamedTuple):
    """A cut of a layer over ranks."""

    tensor: int = 1
    """Ranks that share it."""
    sequence_parallel: bool = False
    """True if they also share the tokens in parts that are not cut."""


UNCUT = LayerCut()


class LayerTime(NamedTuple):
    """Seconds of a layer on a rank, without communication; their sum is its time."""

    # A measured profile cannot tell these apart and puts all into the most likely one.
    compute: float = 0.0
    """Limited by FLOP/s."""
    memory: float = 0.0
    """Limited by the memory's bandwidth."""
    launch: float = 0.0
    """The device waits for the host."""

    @property
    def total(self) -> float:
        """The sum."""
        return self.compute + self.memory + self.launch

    def plus(self, other: LayerTime, times: float = 1.0) -> LayerTime:
        """The sum of two times, the second multiplied."""
        return LayerTime(
            self.compute + other.compute * times,
            self.memory + other.memory * times,
            self.launch + other.launch * times,
        )


NOTHING = LayerTime()


class LayerSeconds(Protocol):
    """Times of the layers of one model on one kind of device, in one number format."""

    # Estimates are cached by this object, so it may equal only objects with equal results.
    def __hash__(self) -> int:
        """Consistent with equality."""

    def forward(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """A forward pass of training or inference.

        Args:
            kind: of layer.
            cut: of the layer.
            tokens: tokens at once, padding included; for the head only predicted ones.
            pairs: pairs (query, key) that attention computes.
        """

    def backward(
        self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float, recompute: bool
    ) -> LayerTime:
        """The backward pass; with `recompute` after another forward pass. Arguments as for
        `forward`."""

    def optimizer(self, num_parameters: float) -> float:
        """Seconds of clipping and one AdamW step of a number of float32 parameters on a rank."""

    def prefill(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """A generation engine's pass over prompts. Arguments as for `forward`."""

    def decode(
        self, kind: LayerKind, cut: LayerCut, sequences: float, cached_tokens: float
    ) -> LayerTime:
        """A generation engine's pass over the last token of each sequence; the head's includes
        sampling.

        Args:
            kind: of layer.
            cut: of the layer.
            sequences: sequences that run.
            cached_tokens: sum over these sequences.
        """


# Sums with the residual stream in a block.
RESIDUALS = 2
# Kernels of a block's forward pass in PyTorch, without norms; and of a norm. Counted by hand in
# transformers' Llama: 7 products, 10 of rotary positions, 2 of attention, 2 of the activation, 2 of
# the residuals.
EAGER_KERNELS, NORM_KERNELS = 23, 6
# Kernels of a block in vLLM: 4 products, 2 norms, and one each for rotary positions, the cache's
# write, attention and the activation.
FUSED_KERNELS = 10


class BlockCounts(NamedTuple):
    """Counts of one block on a rank."""

    weights: float
    """Multiply-adds of a token, and numbers of the weights."""
    widths: float
    """Numbers that products of matrices read and write for a token, without weights."""
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
    """Kernels that PyTorch launches for a forward pass."""


class TableCounts(NamedTuple):
    """Counts of the embedding, or of the output projection, on a rank."""

    hidden: int
    rows: float
    """Rows of the vocabulary on the rank."""


@lru_cache(maxsize=4096)
def block_counts(shape: DecoderShape, number_bytes: int, cut: LayerCut) -> BlockCounts:
    """Counts of a block.

    Args:
        shape: of the model.
        number_bytes: of a number in the computation.
        cut: of the block.
    """
    tensor, hidden = cut.tensor, shape.hidden_size
    query = shape.query_size / tensor
    # Keys and values of fewer heads than ranks are replicated.
    key = key_value_heads_per_rank(shape, tensor) * shape.head_dim
    middle = shape.intermediate_size / tensor
    norms = shape.norms_per_layer
    heads_norm = query + key if shape.query_key_norm else 0
    # Only sequence parallelism shares out the tokens of norms and residuals.
    own = hidden / (tensor if cut.sequence_parallel else 1)
    norm, number = norm_bytes(number_bytes), number_bytes
    return BlockCounts(
        weights=hidden * (2 * query + 2 * key) + 3 * hidden * middle,
        widths=4 * hidden + 2 * query + 2 * key + 3 * middle,
        pair_flops=4 * query,
        attention_width=2 * query + 2 * key,
        # Residual: 3 b per number. Rotary positions, of queries and keys: two products (2 b each),
        # the halves swapped (3 b), the sum (3 b). SiLU and product: 5 b.
        eager_bytes=(norms * own + heads_norm) * norm
        + (RESIDUALS * 3 * own + 10 * (query + key) + 5 * middle) * number,
        # Norm with residual (4 b), rotary in place (2 b), the cache's write (4 b for each key or
        # value), SiLU and product (3 b).
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
    # Squared (8), averaged (4), scaled (8), times the weight (2 b); in bfloat16 cast to float32 and
    # back.
    casts = 0 if number_bytes == FLOAT32_BYTES else 2 * (FLOAT32_BYTES + number_bytes)
    return 8 + 4 + 8 + 2 * number_bytes + casts
