"""Layers by a roofline: a kernel's time is that of its FLOP or of its bytes, whichever is longer.

    products of matrices   max( 2 (w + n_half d) (n + n_half) / (F e),  (w + n v) b / (B m) )
    attention              max( f p / (F a),  n u b / (B m) )
    elementwise            n x / (B m)

n tokens, p pairs of them, w weights, v widths, f FLOP of a pair, u attention's width and x bytes as
of `BlockCounts`; F FLOP/s with shares e of products and a of attention, B bandwidth with its share
m. A kernel works on tiles in all three directions, so narrow matrices lose like few tokens: d is
the sum of the sides of the weights' matrices. Decoding reads the cache, of c tokens in all:

    attention              max( f c / (F a),  c y / (B m) ),  y bytes of a token's keys and values

The head is a product, and passes over its logits (numerics/head.py of the runtime).

Source: Williams, Waterman and Patterson, "Roofline" (2009); FlashAttention-2 (arXiv 2307.08691),
section 4.1, for attention's backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.layers import (
    FUSED_KERNELS,
    BlockCounts,
    LayerCut,
    LayerKind,
    LayerTime,
    TableCounts,
    block_counts,
    table_counts,
)
from rlhf_planner.memory.role_model import FLOAT32_BYTES
from rlhf_sizing.shape import DecoderShape

# Products of attention's backward pass for each of its forward pass: 5 for 2.
ATTENTION_BACKWARD = 2.5
# Fused AdamW, for each parameter: weight, gradient and two moments read (16), weight and moments
# written (12), all float32.
ADAM_STEP_BYTES = 28
# The gradient read for its norm (4), read and written scaled (8).
CLIPPING_BYTES = 12
# For each logit beside its product: cast (4), divided by the temperature (8), maximum (4), minus it
# (8), exponential (8), sum (4), written by the product before (4).
LOGIT_FORWARD_BYTES = 40
# Cast (4) and divided (8) again, softmax and the loss's gradient (32), divided (8), cast (8).
LOGIT_BACKWARD_BYTES = 60
# vLLM for each logit of a sampled token: cast (6), temperature (8), log-softmax (12), softmax (8),
# exponential noise written and divided by (8), maximum (4).
SAMPLED_LOGIT_BYTES = 46


class LayerRates(NamedTuple):
    """Seconds of a unit of work."""

    matmul: float
    """Seconds of a FLOP in a product of matrices."""
    attention: float
    """Seconds of a FLOP in attention."""
    byte: float
    """Seconds of a byte of memory."""
    half_tokens: float
    """Tokens at which a product reaches half of its rate."""


@dataclass(frozen=True, eq=False)
class AnalyticLayers:
    """`LayerSeconds` from data sheets."""

    hardware: Hardware
    shape: DecoderShape
    precision: Precision
    """float32 or bfloat16."""

    @cached_property
    def number_bytes(self) -> int:
        """Bytes of a number in the computation."""
        return 2 if self.precision is Precision.BFLOAT16 else FLOAT32_BYTES

    @cached_property
    def rates(self) -> LayerRates:
        """Rates of the hardware in this number format."""
        hardware = self.hardware
        peak = hardware.flops_per_second(self.precision)
        matmul, byte = 1 / (peak * hardware.matmul_efficiency), hardware.memory_seconds(1)
        # At `ridge` tokens computing a product takes as long as reading its weights. Kernels for
        # fewer tokens have smaller tiles, and products with one token are limited by memory
        # everywhere: so the tokens of half the rate are at most half of it.
        ridge = self.number_bytes * byte / (2 * matmul)
        half = min(hardware.matmul_half_tokens, ridge / 2)
        return LayerRates(matmul, 1 / (peak * hardware.attention_efficiency), byte, half)

    def forward(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """See `LayerSeconds`."""
        if kind is LayerKind.BLOCK:
            return self._eager_block(_block(self, cut), tokens, pairs, 1, 1.0)
        table = _table(self, cut)
        if kind is LayerKind.HEAD:
            return self._head(table, tokens, 1, LOGIT_FORWARD_BYTES)
        moved = 2 * tokens * table.hidden * self.number_bytes
        return self._launched(0.0, moved * self.rates.byte, 1)

    def backward(
        self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float, recompute: bool
    ) -> LayerTime:
        """See `LayerSeconds`."""
        # Embedding and head have no extra recomputation: the head's backward pass always has its
        # own.
        if kind is LayerKind.BLOCK:
            counts = _block(self, cut)
            # Two products for each forward one, with respect to inputs and to weights.
            time = self._eager_block(counts, tokens, pairs, 2, ATTENTION_BACKWARD)
            if recompute:
                time = time.plus(self._eager_block(counts, tokens, pairs, 1, 1.0))
            return time
        table = _table(self, cut)
        if kind is LayerKind.HEAD:
            # The logits are computed again, then the gradients of inputs and weights.
            return self._head(table, tokens, 3, LOGIT_BACKWARD_BYTES)
        moved = (3 * tokens + table.rows) * table.hidden * self.number_bytes
        return self._launched(0.0, moved * self.rates.byte, 3)

    def optimizer(self, num_parameters: float) -> float:
        """See `LayerSeconds`."""
        return num_parameters * (ADAM_STEP_BYTES + CLIPPING_BYTES) * self.rates.byte

    def prefill(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """See `LayerSeconds`."""
        if kind is LayerKind.HEAD:
            return self.decode(kind, cut, tokens, 0.0)
        if kind is LayerKind.EMBEDDING:
            return self.forward(kind, cut, tokens, pairs)
        counts = _block(self, cut)
        compute, memory = self._block_products(counts, tokens)
        more_compute, more_memory = self._attention(counts, tokens, pairs)
        memory += more_memory + tokens * counts.fused_bytes * self.rates.byte
        return self._launched(compute + more_compute, memory, FUSED_KERNELS)

    def decode(
        self, kind: LayerKind, cut: LayerCut, sequences: float, cached_tokens: float
    ) -> LayerTime:
        """See `LayerSeconds`."""
        # Decoding replays CUDA graphs: each kernel adds an overhead that nothing hides.
        rates, graph = self.rates, self.hardware.graph_kernel_seconds
        if kind is LayerKind.BLOCK:
            counts = _block(self, cut)
            compute, memory = self._block_products(counts, sequences)
            reading = cached_tokens * counts.cached_bytes * rates.byte
            attending = cached_tokens * counts.pair_flops * rates.attention
            memory += sequences * counts.fused_bytes * rates.byte
            if attending > reading:
                return LayerTime(compute + attending, memory, FUSED_KERNELS * graph)
            return LayerTime(compute, memory + reading, FUSED_KERNELS * graph)
        table = _table(self, cut)
        if kind is LayerKind.EMBEDDING:
            moved = 2 * sequences * table.hidden * self.number_bytes
            return LayerTime(0.0, moved * rates.byte, graph)
        compute, memory = self._table_products(table, sequences)
        # Logits are gathered first, so sampling covers the full vocabulary.
        sampled = sequences * self.shape.vocab_size * SAMPLED_LOGIT_BYTES
        return LayerTime(compute, memory + sampled * rates.byte, FUSED_KERNELS * graph)

    def _eager_block(
        self, counts: BlockCounts, tokens: float, pairs: float, passes: int, attention: float
    ) -> LayerTime:
        """`passes` times a block's forward pass, with `attention` times its attention."""
        compute, memory = self._block_products(counts, tokens)
        attending, moving = self._attention(counts, tokens, pairs)
        memory += tokens * counts.eager_bytes * self.rates.byte
        return self._launched(
            passes * compute + attention * attending,
            passes * memory + attention * moving,
            passes * counts.kernels,
        )

    def _head(
        self, table: TableCounts, tokens: float, products: int, logit_bytes: float
    ) -> LayerTime:
        compute, memory = self._table_products(table, tokens)
        passes = tokens * table.rows * logit_bytes * self.rates.byte
        return self._launched(products * compute, products * memory + passes, 12 * products)

    def _block_products(self, counts: BlockCounts, tokens: float) -> tuple[float, float]:
        # What products read and write for a token are the sides of their matrices.
        return self._products(counts.weights, counts.widths, counts.widths, tokens)

    def _table_products(self, table: TableCounts, tokens: float) -> tuple[float, float]:
        # The logits that a product writes count with the passes over them.
        sides = table.hidden + table.rows
        return self._products(table.hidden * table.rows, table.hidden, sides, tokens)

    def _products(
        self, weights: float, widths: float, sides: float, tokens: float
    ) -> tuple[float, float]:
        """Seconds of products of matrices: of FLOP or of bytes, the other is 0."""
        rates = self.rates
        if not tokens:
            return 0.0, 0.0
        # n tokens compute at n / (n + half_tokens) of the rate, so n cancels out of their time; the
        # same for both sides of a matrix, less the smallest term.
        filled = weights + rates.half_tokens * sides
        compute = 2 * filled * (tokens + rates.half_tokens) * rates.matmul
        memory = (weights + tokens * widths) * self.number_bytes * rates.byte
        return (compute, 0.0) if compute >= memory else (0.0, memory)

    def _attention(self, counts: BlockCounts, tokens: float, pairs: float) -> tuple[float, float]:
        """Seconds of attention: of FLOP or of bytes, the other is 0."""
        compute = pairs * counts.pair_flops * self.rates.attention
        memory = tokens * counts.attention_width * self.number_bytes * self.rates.byte
        return (compute, 0.0) if compute >= memory else (0.0, memory)

    def _launched(self, compute: float, memory: float, kernels: int) -> LayerTime:
        """Add the launches of a number of kernels."""
        launch = kernels * self.hardware.eager_kernel_seconds
        # GPUs' kernels are launched ahead: only the excess over the kernels' own time shows. On
        # CPUs nothing hides a launch.
        if self.hardware.device is Device.GPU:
            launch = max(0.0, launch - compute - memory)
        return LayerTime(compute, memory, launch)


@lru_cache(maxsize=4096)
def analytic_layers(
    hardware: Hardware, shape: DecoderShape, precision: Precision
) -> AnalyticLayers:
    """Layers by data sheets: the same object for equal arguments."""
    # The layers are hashed by identity: equal but distinct objects would miss caches of estimates.
    return AnalyticLayers(hardware, shape, precision)


@lru_cache(maxsize=4096)
def _block(layers: AnalyticLayers, cut: LayerCut) -> BlockCounts:
    return block_counts(layers.shape, layers.number_bytes, cut)


@lru_cache(maxsize=4096)
def _table(layers: AnalyticLayers, cut: LayerCut) -> TableCounts:
    return table_counts(layers.shape, cut)
