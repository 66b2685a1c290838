"""Shared prompts: tests by a forward pass if a model computes responses with a shared prompt
correctly, and the cost of its sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlhf_api.spec.resources import Device
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.packing import MicroBatch, Packing, pack_micro_batches
from rlhf_sizing.costs import MASKED_COST, SequenceCost, attention_width

TOLERANCE = 5e-2
"""Maximum distance of a token's outputs, relative to their norm. bfloat16 rounds to about 4e-3 in
each layer; attention to wrong tokens gives far larger distances."""


def sequence_cost(width: float, device: torch.device) -> SequenceCost:
    """Cost of sequences of a model of that width, by `attention_width`, on a device."""
    return SequenceCost(width, MASKED_COST[Device.CPU if device.type == "cpu" else Device.GPU])


def width_of(config: Any) -> float:
    """Width of a model by `attention_width`, from its config of transformers."""
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    return attention_width(
        config.hidden_size,
        config.intermediate_size,
        heads * head_size,
        key_value_heads * head_size,
    )


def has_full_attention(config: Any) -> bool:
    """True if every layer has full causal attention."""
    # A custom mask, as of shared prompts, would replace windows and chunks.
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    uses_window = window is not None and getattr(config, "use_sliding_window", True)
    chunked = getattr(config, "attention_chunk_size", None) is not None
    return set(layer_types) == {"full_attention"} and not (uses_window or chunked)


def supports_shared_prompts(
    outputs: Callable[[MicroBatch], torch.Tensor], vocab_size: int, width: float
) -> bool:
    """True if two responses with a shared prompt have the same outputs as each response alone.

    `outputs` runs a micro-batch forward; `width` is that of the model (`width_of`).
    """
    # Asked of the model itself: no attribute of transformers tells which models support custom
    # masks and positions. One that fails computes every prompt with every response.
    tokens = np.arange(1, 10) % vocab_size
    prompts = pack([tokens[:4], tokens[:4]], np.int32)
    responses = pack([tokens[4:7], tokens[5:9]], np.int32)
    groups = np.zeros(2, dtype=np.int64)
    cost = SequenceCost(width)
    (shared,) = pack_micro_batches(prompts, responses, groups, Packing(1 << 20, cost, True))
    (alone,) = pack_micro_batches(prompts, responses, groups, Packing(1 << 20, cost, False))
    if shared.attention_mask is None:  # sharing never pays for this width
        return False
    expected = outputs(alone)[torch.argsort(alone.tokens)]
    try:
        actual = outputs(shared)[torch.argsort(shared.tokens)]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    distances = (actual - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-6)
    return bool(distances.max() <= TOLERANCE)
