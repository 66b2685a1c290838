"""Modules that replace Megatron's in a layer: plain torch, for CPUs and GPUs.

Megatron's own need libraries with GPU kernels or (attention) store all scores in memory, in a
buffer of `parallel_state`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rlhf_runtime.engines.megatron.core import RotaryEmbedding, TransformerLayer


class RmsNorm(nn.RMSNorm):
    """RMS norm, replicated on all tensor ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        # Tells Megatron to sum the gradient over tensor ranks, if each has a part of a sequence.
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010


class Attention(nn.Module):
    """Attention of this rank's query heads to the keys and values of their groups."""

    def __init__(self, softmax_scale: float | None = None, **_unused: Any) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **_unused: Any,
    ) -> torch.Tensor:
        """Scaled dot-product attention.

        Args:
            query: [length, batch, heads, size].
            key: [length, batch, groups, size].
            value: like the keys.
            attention_mask: bool[batch or 1, 1, queries, keys], true where attention is allowed (the
                opposite of Megatron's masks); None: causal.

        Returns:
            [length, batch, heads * size].
        """
        heads, keys, values = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        if attention_mask is not None and heads.is_cuda:  # no fused kernel takes masks and groups
            times = heads.shape[1] // keys.shape[1]
            keys, values = (part.repeat_interleave(times, dim=1) for part in (keys, values))
        attended = scaled_dot_product_attention(
            heads,
            keys,
            values,
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=self._scale,
            enable_gqa=heads.shape[1] != keys.shape[1],
        )
        return attended.permute(2, 0, 1, 3).flatten(2)


class RecomputedLayer(TransformerLayer):  # type: ignore[misc]  # Megatron is not typed
    """A layer that keeps only its input, and recomputes activations in the backward pass."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """The layer's forward pass, with the same arguments."""
        # Not Megatron's recomputation: that saves states of the GPU's random numbers, and no
        # random number is drawn here.
        run = super().forward
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **options)


class UntrainedPadding:
    """Stops gradients of the padding token's embedding, like torch's `padding_idx`.

    Replaces the forward pass of an embedding.
    """

    # transformers sets `padding_idx`; without this, both engines would train different weights.

    def __init__(self, embedding: nn.Module, token: int, tensor_rank: int, is_cut: bool) -> None:
        """Replace the embedding's forward pass.

        Args:
            embedding: Megatron's embedding of words.
            token: the padding token.
            tensor_rank: index of this rank among the tensor ranks.
            is_cut: True if tensor ranks share the positions of sequences: outputs are then [own
                positions, batch, hidden], else [batch, length, hidden].
        """
        self._embed = embedding.forward
        self._token, self._rank, self._is_cut = token, tensor_rank, is_cut
        embedding.forward = self._forward

    def _forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._embed(token_ids)
        if self._is_cut:
            own, length = token_ids.t(), embedded.shape[0]
            token_ids = own[self._rank * length : (self._rank + 1) * length]
        # Contiguous, as other stages get it: `where` derives its strides from the condition, too.
        is_padding = (token_ids == self._token).contiguous()[..., None]
        return torch.where(is_padding, embedded.detach(), embedded)


class RotaryAngles(RotaryEmbedding):  # type: ignore[misc]  # Megatron is not typed
    """Rotary angles of heads: transformers' frequencies, at any positions."""

    def __init__(self, config: Any, head_size: int, alone: Any, device: torch.device) -> None:
        super().__init__(head_size, 1.0, use_cpu_initialization=True, cp_group=alone)
        # No buffer, which would be cast to the model's dtype and moved to other devices.
        self.inv_freq = LlamaRotaryEmbedding(config).inv_freq.to(device, copy=True)
        self.positions: torch.Tensor | None = None
        """int64[batch, length]: positions of the next forward pass; None: 0, 1, 2, ..."""

    def forward(self, max_seq_len: int, *_unused: Any, **_options: Any) -> torch.Tensor:
        """Angles, float32[length, batch or 1, 1, head_size]."""
        positions = self.positions
        if positions is None:
            positions = torch.arange(max_seq_len, device=self.inv_freq.device)[None]
        frequencies = self.inv_freq.to(positions.device, torch.float32)
        angles = positions.t()[:, :, None].float() * frequencies
        return torch.cat((angles, angles), dim=-1)[:, :, None]
