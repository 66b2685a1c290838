"""The parts of a layer that are not Megatron's own: plain torch, on CPUs as on GPUs.

Megatron's are either kernels of libraries that need a GPU to be built, or (attention) hold all
scores in memory, in a buffer of `parallel_state`.
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
    """A norm that tensor ranks hold alike; Megatron sums its gradient over them where they see
    different parts of a sequence."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010


class Attention(nn.Module):
    """Queries of this rank's heads against their groups' keys and values."""

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
        """What each head sees: [length, batch, heads * size].

        Args:
            query: [length, batch, heads, size].
            key: [length, batch, groups, size].
            value: like the keys.
            attention_mask: bool[batch or 1, 1, length, length], true where the second token is
                seen by the first (not as in Megatron); None for all earlier ones.
        """
        heads, keys, values = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        if attention_mask is not None and heads.is_cuda:  # no fused kernel takes masks and groups
            times = heads.shape[1] // keys.shape[1]
            keys, values = (part.repeat_interleave(times, dim=1) for part in (keys, values))
        seen = scaled_dot_product_attention(
            heads,
            keys,
            values,
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=self._scale,
            enable_gqa=heads.shape[1] != keys.shape[1],
        )
        return seen.permute(2, 0, 1, 3).flatten(2)


class RecomputedLayer(TransformerLayer):  # type: ignore[misc]  # Megatron is not typed
    """A layer that keeps its input only, and computes the rest again for the backward pass.

    Megatron's own way keeps states of a GPU's random numbers, of which none is drawn here.
    """

    def forward(self, *args: Any, **options: Any) -> Any:
        """As the layer's own."""
        run = super().forward
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **options)


class UntrainedPadding:
    """Takes the place of the forward pass of an embedding, so that a model's padding token keeps
    its embedding: as torch's `padding_idx`, which transformers sets, has it."""

    def __init__(self, embedding: nn.Module, token: int, tensor_rank: int, is_cut: bool) -> None:
        """Change the embedding.

        Args:
            embedding: Megatron's, of words.
            token: the padding token.
            tensor_rank: this rank's number among those that share the sequences.
            is_cut: whether they do: it then gives [own positions, batch, hidden], else [batch,
                length, hidden].
        """
        self._embed = embedding.forward
        self._token, self._rank, self._is_cut = token, tensor_rank, is_cut
        embedding.forward = self._forward

    def _forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._embed(token_ids)
        if self._is_cut:
            own, length = token_ids.t(), found.shape[0]
            token_ids = own[self._rank * length : (self._rank + 1) * length]
        # Contiguous, as other stages get it: the result takes its strides from the condition, too.
        is_padding = (token_ids == self._token).contiguous()[..., None]
        return torch.where(is_padding, found.detach(), found)


class RotaryAngles(RotaryEmbedding):  # type: ignore[misc]  # Megatron is not typed
    """The angles by which heads are rotated: transformers' frequencies, at any positions."""

    def __init__(self, config: Any, head_size: int, alone: Any, device: torch.device) -> None:
        super().__init__(head_size, 1.0, use_cpu_initialization=True, cp_group=alone)
        # No buffer: it stays in float32, and nothing moves it to another device.
        self.inv_freq = LlamaRotaryEmbedding(config).inv_freq.to(device, copy=True)
        self.positions: torch.Tensor | None = None
        """int64[batch, length] of the tokens that are computed next; None: 0, 1, 2, ..."""

    def forward(self, max_seq_len: int, *_unused: Any, **_options: Any) -> torch.Tensor:
        """float32[length, batch or 1, 1, head_size]."""
        positions = self.positions
        if positions is None:
            positions = torch.arange(max_seq_len, device=self.inv_freq.device)[None]
        frequencies = self.inv_freq.to(positions.device, torch.float32)
        angles = positions.t()[:, :, None].float() * frequencies
        return torch.cat((angles, angles), dim=-1)[:, :, None]
