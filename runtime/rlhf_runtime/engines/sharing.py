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
from rlhf_sizing.costs import MASKED_COST, SequenceCost

TOLERANCE = 5e-2
"""Maximum distance of a token's outputs, relative to their norm. bfloat16 rounds to about 4e-3 in
each layer; attention to wrong tokens gives far larger distances."""


def sequence_cost(hidden_size: int, device: torch.device) -> SequenceCost:
    """Cost of sequences of a model of that width on a device."""
    return SequenceCost(
        hidden_size, MASKED_COST[Device.CPU if device.type == "cpu" else Device.GPU]
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
    outputs: Callable[[MicroBatch], torch.Tensor], vocab_size: int, hidden_size: int
) -> bool:
    """True if two responses with a shared prompt have the same outputs as each response alone.

    `outputs` runs a micro-batch forward.
    """
    # Asked of the model itself: no attribute of transformers tells which models support custom
    # masks and positions. One that fails computes every prompt with every response.
    tokens = np.arange(1, 10) % vocab_size
    prompts = pack([tokens[:4], tokens[:4]], np.int32)
    responses = pack([tokens[4:7], tokens[5:9]], np.int32)
    groups = np.zeros(2, dtype=np.int64)
    cost = SequenceCost(hidden_size)
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
