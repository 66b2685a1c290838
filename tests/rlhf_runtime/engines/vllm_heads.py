"""For which head sizes vLLM's CPU build has kernels, by calling them. Imports vLLM when called."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rlhf_planner.placement.validation import CPU_HEAD_SIZES

WITHOUT_KERNEL = (8, 16, 24, 40, 72, 100, 176, 320, 384, 576)
TOKENS, HEADS, KEY_HEADS, BLOCK = 5, 4, 2, 32


def assert_kernels_are_those_that_plans_take() -> None:
    """Each computes what torch does; sizes that plans refuse fail as they would in a run."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert set(CPUAttentionBackend.get_supported_head_sizes()) <= set(CPU_HEAD_SIZES)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        for size in CPU_HEAD_SIZES:
            torch.manual_seed(size)
            query = torch.randn(TOKENS, HEADS, size, dtype=dtype)
            key, value = torch.randn(2, TOKENS, KEY_HEADS, size, dtype=dtype)
            expected = scaled_dot_product_attention(
                *(each.transpose(0, 1).float() for each in (query, key, value)),
                is_causal=True,
                enable_gqa=True,
            )
            got = attention(query, key, value).transpose(0, 1).float()
            torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
    for size in WITHOUT_KERNEL:
        with pytest.raises(RuntimeError, match="Unsupported CPU attention configuration"):
            attention(*(torch.zeros(TOKENS, heads, size) for heads in (HEADS, 2, 2)))


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """One prompt's, by vLLM's kernels over a cache of one block."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    size = query.shape[-1]
    isa = _get_attn_isa(query.dtype, BLOCK, size)
    starts = torch.tensor([0, TOKENS], dtype=torch.int32)
    lengths = torch.tensor([TOKENS], dtype=torch.int32)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1,
        num_heads=HEADS,
        num_kv_heads=KEY_HEADS,
        head_dim=size,
        seq_lens=lengths,
        dtype=query.dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    cache = torch.zeros(1, KEY_HEADS, BLOCK * 2, size, dtype=query.dtype)
    keys, values = cache.chunk(2, dim=2)
    slots = torch.arange(TOKENS, dtype=torch.int64)
    ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots, isa)
    output = torch.empty_like(query)
    ops.cpu_attention_with_kv_cache(
        query=query,
        key_cache=keys,
        value_cache=values,
        output=output,
        query_start_loc=starts,
        seq_lens=lengths,
        scale=size**-0.5,
        causal=True,
        alibi_slopes=None,
        sliding_window=-1,
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        softcap=0,
        scheduler_metadata=metadata,
        s_aux=None,
    )
    return output
