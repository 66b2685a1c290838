"""Layers by hand: on a device of 1e12 FLOP/s (float32) where nothing else takes time, then on one
where each of the others does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.analytic_layers import (
    LOGIT_BACKWARD_BYTES,
    LOGIT_FORWARD_BYTES,
    SAMPLED_LOGIT_BYTES,
    AnalyticLayers,
)
from rlhf_planner.cost.hardware import CPU, HARDWARE, SHARES, Hardware
from rlhf_planner.cost.layers import (
    UNCUT,
    LayerCut,
    LayerKind,
    LayerSeconds,
    LayerTime,
    block_counts,
    norm_bytes,
)
from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS

from .simple import ENDLESS, IDEAL, LLAMA_2_7B, SMALL

EMBEDDING, BLOCK, HEAD = LayerKind
COMPUTE = AnalyticLayers(IDEAL, SMALL, Precision.FLOAT32)
"""Limited by FLOP/s."""
SLOW_MEMORY = replace(
    IDEAL,
    memory_bytes_per_second=1e12,
    float32_flops_per_second=ENDLESS,
    bfloat16_flops_per_second=ENDLESS,
)
MEMORY = AnalyticLayers(SLOW_MEMORY, SMALL, Precision.FLOAT32)
"""Limited by memory."""
PICO = 1e-12


def picoseconds(time: LayerTime) -> tuple[float, float, float]:
    return time.compute / PICO, time.memory / PICO, time.launch / PICO


def test_a_forward_pass_computes_two_flop_for_each_weight_and_token() -> None:
    """576 weights, 10 tokens; attention 4 x 8 FLOP for each of 50 pairs."""
    compute, memory, launch = picoseconds(COMPUTE.forward(BLOCK, UNCUT, 10, 50))
    assert compute == pytest.approx(2 * 576 * 10 + 4 * 8 * 50)
    assert (memory, launch) == (pytest.approx(0, abs=1e-9), 0)


def test_a_backward_pass_computes_twice_as_much_and_five_products_of_attention() -> None:
    forward = COMPUTE.forward(BLOCK, UNCUT, 10, 50)
    backward = COMPUTE.backward(BLOCK, UNCUT, 10, 50, False)
    assert backward.compute / PICO == pytest.approx(2 * 2 * 576 * 10 + 2.5 * 4 * 8 * 50)
    recomputed = COMPUTE.backward(BLOCK, UNCUT, 10, 50, True)
    assert recomputed.total == pytest.approx(backward.total + forward.total)


def test_the_head_is_a_product_that_is_computed_again_backward() -> None:
    assert COMPUTE.forward(HEAD, UNCUT, 10, 0).compute / PICO == pytest.approx(2 * 512 * 10)
    assert COMPUTE.backward(HEAD, UNCUT, 10, 0, True).compute / PICO == pytest.approx(6 * 512 * 10)
    assert COMPUTE.forward(EMBEDDING, UNCUT, 10, 0).compute == 0


def test_tensor_ranks_share_what_is_computed() -> None:
    """One head of keys and values for two ranks: both hold it, 8 x 8 weights more in all."""
    two = COMPUTE.forward(BLOCK, LayerCut(2), 10, 0).compute / PICO
    assert two == pytest.approx(2 * (576 + 64) / 2 * 10)
    assert COMPUTE.forward(HEAD, LayerCut(2), 10, 0).compute / PICO == pytest.approx(512 * 10)


def test_bytes_of_a_forward_pass() -> None:
    """float32, 10 tokens. Products: 576 weights, and for a token 8 + 16, 8 + 8, 8 + 32, 16 + 8.
    Attention: 8 + 4 + 4 + 8 numbers. Elementwise: two norms of 8 (28 bytes each), two residuals of
    8 (3 numbers), 12 of queries and keys (10 numbers), 16 of the feed-forward layer (5 numbers)."""
    products = (576 + 10 * 104) * 4
    attention = 10 * 24 * 4
    elementwise = 10 * (2 * 8 * 28 + (2 * 3 * 8 + 10 * 12 + 5 * 16) * 4)
    _, memory, _ = picoseconds(MEMORY.forward(BLOCK, UNCUT, 10, 50))
    assert memory == pytest.approx(products + attention + elementwise)
    _, backward, _ = picoseconds(MEMORY.backward(BLOCK, UNCUT, 10, 50, False))
    assert backward == pytest.approx(2 * (products + elementwise) + 2.5 * attention)


def test_bytes_of_norms_in_bfloat16_are_those_of_casts_too() -> None:
    assert (norm_bytes(4), norm_bytes(2)) == (28, 36)


def test_bytes_of_ends() -> None:
    """The product reads the head, writes logits with the passes over them."""
    table, tokens = 512 * 4, 10
    assert MEMORY.forward(EMBEDDING, UNCUT, tokens, 0).memory / PICO == pytest.approx(
        2 * 10 * 8 * 4
    )
    backward = MEMORY.backward(EMBEDDING, UNCUT, tokens, 0, False).memory / PICO
    assert backward == pytest.approx(3 * 10 * 8 * 4 + table)
    forward = MEMORY.forward(HEAD, UNCUT, tokens, 0).memory / PICO
    product = table + tokens * 8 * 4
    assert forward == pytest.approx(product + tokens * 64 * LOGIT_FORWARD_BYTES)
    backward = MEMORY.backward(HEAD, UNCUT, tokens, 0, False).memory / PICO
    assert backward == pytest.approx(3 * product + tokens * 64 * LOGIT_BACKWARD_BYTES)


def test_sequence_parallelism_shares_norms() -> None:
    whole = block_counts(SMALL, 4, LayerCut(2)).eager_bytes
    shared = block_counts(SMALL, 4, LayerCut(2, sequence_parallel=True)).eager_bytes
    assert whole - shared == pytest.approx((2 * 8 * 28 + 2 * 3 * 8 * 4) / 2)


def test_prefilling_computes_as_much_and_moves_less() -> None:
    """vLLM: norms 4 numbers of 8 twice, 2 of 12 queries and keys, 4 of 4 keys and 4 values, 3 of
    16."""
    prefill, forward = (
        COMPUTE.prefill(BLOCK, UNCUT, 10, 50),
        COMPUTE.forward(BLOCK, UNCUT, 10, 50),
    )
    assert prefill.compute == pytest.approx(forward.compute)
    _, memory, _ = picoseconds(MEMORY.prefill(BLOCK, UNCUT, 10, 50))
    fused = 10 * (4 * 2 * 8 + 2 * 12 + 4 * 8 + 3 * 16) * 4
    assert memory == pytest.approx((576 + 10 * 104) * 4 + 10 * 24 * 4 + fused)


def test_decoding_reads_weights_and_cache() -> None:
    """3 sequences with 100 tokens: keys and values of 2 x 4 numbers each."""
    fused = 3 * (4 * 2 * 8 + 2 * 12 + 4 * 8 + 3 * 16) * 4
    _, memory, _ = picoseconds(MEMORY.decode(BLOCK, UNCUT, 3, 100))
    assert memory == pytest.approx((576 + 3 * 104) * 4 + 100 * 8 * 4 + fused)
    compute, _, _ = picoseconds(COMPUTE.decode(BLOCK, UNCUT, 3, 100))
    assert compute == pytest.approx(2 * 576 * 3 + 4 * 8 * 100)
    _, memory, _ = picoseconds(MEMORY.decode(HEAD, UNCUT, 3, 0))
    assert memory == pytest.approx((512 + 3 * 8) * 4 + 3 * 64 * SAMPLED_LOGIT_BYTES)


def test_the_optimizer_moves_forty_bytes_of_a_parameter() -> None:
    """AdamW reads four float32 and writes three; the norm reads one, clipping reads and writes."""
    assert MEMORY.optimizer(1000) / PICO == pytest.approx(1000 * (7 + 3) * 4)


def test_few_tokens_compute_slower() -> None:
    """1024 tokens as long as 1024 + 64; where weights are read as fast as 8 tokens are computed,
    kernels have smaller tiles: as 1024 + 4. The same for the sides of matrices."""
    counts = block_counts(LLAMA_2_7B, 4, UNCUT)
    sides = 4 * (4096 + 4096) + 3 * (4096 + 11008) - 2 * 4096 - 4096
    assert counts.widths == sides, "inputs of queries, keys and values, and of gate and up: once"
    for ridge, half in ((200, 64), (8, 4)):
        memory = 4 * 1e12 / 2 / ridge
        hardware = replace(IDEAL, matmul_half_tokens=64.0, memory_bytes_per_second=memory)
        layers = AnalyticLayers(hardware, LLAMA_2_7B, Precision.FLOAT32)
        assert layers.rates.half_tokens == pytest.approx(half)
        time = layers.forward(BLOCK, UNCUT, 1024, 0)
        filled = counts.weights + half * sides
        assert time.compute == pytest.approx(2 * filled * (1024 + half) / 1e12)


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
@pytest.mark.parametrize("name", HARDWARE)
def test_products_with_one_token_are_limited_by_memory_everywhere(
    name: str, precision: Precision
) -> None:
    layers = AnalyticLayers(HARDWARE[name], LLAMA_2_7B, precision)
    time = layers.decode(BLOCK, UNCUT, 1, 1)
    assert time.compute == 0
    read = LLAMA_2_7B.block_parameters * layers.number_bytes
    assert time.memory == pytest.approx(HARDWARE[name].memory_seconds(read), rel=0.01)
    assert layers.decode(BLOCK, UNCUT, 4096, 1).compute > 0


def test_launches_are_hidden_behind_longer_kernels_on_gpus_only() -> None:
    """A block has 35 kernels: 23 and two norms of 6."""
    slow = replace(IDEAL, eager_kernel_seconds=1.0, graph_kernel_seconds=0.5)
    on_gpu = AnalyticLayers(slow, SMALL, Precision.FLOAT32)
    on_cpu = AnalyticLayers(replace(slow, device=Device.CPU), SMALL, Precision.FLOAT32)
    seconds = 2 * 576 * 1e10 / 1e12
    few, many = on_gpu.forward(BLOCK, UNCUT, 1e10, 0), on_gpu.forward(BLOCK, UNCUT, 1e11, 0)
    assert few.launch == pytest.approx(35 - seconds) and few.total == pytest.approx(35)
    assert many.launch == 0 and many.total == pytest.approx(10 * seconds)
    assert on_cpu.forward(BLOCK, UNCUT, 1e10, 0).total == pytest.approx(35 + seconds)
    assert on_gpu.decode(BLOCK, UNCUT, 1, 1).launch == 5  # ten kernels in a graph
    assert on_gpu.backward(BLOCK, UNCUT, 1, 0, True).total == pytest.approx(105)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "google/gemma-2-9b"])
def test_weights_are_those_of_the_shape(name: str) -> None:
    """But for norms and biases, which are no matrices."""
    shape = WELL_KNOWN_MODELS[name]
    counted = block_counts(shape, 2, UNCUT).weights
    assert counted == pytest.approx(shape.block_parameters, rel=1e-3)
    assert counted <= shape.block_parameters


@given(
    st.sampled_from(list(HARDWARE)),
    st.sampled_from(SHARES),
    st.floats(1, 10),
    st.floats(1, 1e5),
    st.floats(0, 1e6),
)
def test_nothing_gets_slower_by_better_kernels_or_fewer_tokens(
    name: str, share: str, factor: float, tokens: float, pairs: float
) -> None:
    base: Hardware = HARDWARE[name]
    better = replace(base, **{share: min(1.0, getattr(base, share) * factor)})

    def all_times(layers: LayerSeconds, tokens: float) -> list[float]:
        cut = LayerCut(2, sequence_parallel=True)
        return [
            *(layers.forward(kind, cut, tokens, pairs).total for kind in LayerKind),
            *(layers.backward(kind, cut, tokens, pairs, True).total for kind in LayerKind),
            *(layers.prefill(kind, cut, tokens, pairs).total for kind in LayerKind),
            *(layers.decode(kind, cut, tokens, pairs).total for kind in LayerKind),
        ]

    layers = AnalyticLayers(base, LLAMA_2_7B, Precision.BFLOAT16)
    times = all_times(layers, tokens)
    others = all_times(AnalyticLayers(better, LLAMA_2_7B, Precision.BFLOAT16), tokens)
    assert all(b <= a * (1 + 1e-9) for a, b in zip(times, others, strict=True))
    more = all_times(layers, tokens * 1.5)
    assert all(b >= a * (1 - 1e-9) for a, b in zip(times, more, strict=True))
    assert all(time > 0 for time in times)


def test_a_core_computes_about_as_fast_as_cores_do() -> None:
    """A block of Llama 7B and 64 tokens, 26 GFLOP: some tenths of a second."""
    layers = AnalyticLayers(CPU, LLAMA_2_7B, Precision.FLOAT32)
    assert 0.1 < layers.forward(BLOCK, UNCUT, 64, 64 * 32).total < 1
