"""Packed copies of weights: linear layers on CPUs are faster with weights in oneDNN's layout.

vLLM packs weights when it loads them, and frees the originals. Here transfers overwrite the
originals, so copies are packed beside them whenever weights are published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

logger = logging.getLogger(__name__)

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""A linear layer's function of input, weight and bias."""

# vLLM's own value: kernels for so many numbers of rows are kept per layer.
PRIMITIVES_PER_LAYER = 32


class PackedWeights:
    """Packed copies of the weights of linear layers.

    If the CPU has no kernel for their format, there are none.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        dtypes = {_weight(layer).dtype for layer in layers}
        self._layers = layers if all(map(_has_kernel, dtypes)) else ()

    def pack(self) -> None:
        """Pack the current weights. Copies of older weights are freed, layer by layer."""
        for layer in self._layers:
            _use(layer, nn.functional.linear)
            _use(layer, _packed_linear(_weight(layer)))

    def drop(self) -> None:
        """Free the copies; the layers use their own weights."""
        for layer in self._layers:
            _use(layer, nn.functional.linear)


def linear_layers(model: nn.Module) -> list[nn.Module]:
    """Layers of a model that vLLM's CPU backend computes as linear ones."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    return [
        layer
        for layer in model.modules()
        if hasattr(layer, "cpu_linear")
        # An embedding is only read by rows. A head, which may share its weight, is a subclass.
        and (isinstance(layer, ParallelLMHead) or not isinstance(layer, VocabParallelEmbedding))
    ]


def _has_kernel(dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies with packed weights of a format on this CPU."""
    import vllm._custom_ops as ops

    if not ops._supports_onednn:
        return False
    try:
        ops.create_onednn_mm(torch.zeros(16, 16, dtype=dtype), PRIMITIVES_PER_LAYER)
    except RuntimeError as error:
        logger.warning("weights are not packed: oneDNN refuses %s: %s", dtype, error)
        return False
    return True


def _packed_linear(weight: torch.Tensor) -> Linear:
    """A linear function with a packed copy of a weight."""
    import vllm._custom_ops as ops

    packed = ops.create_onednn_mm(weight.t(), PRIMITIVES_PER_LAYER)

    def linear(
        x: torch.Tensor, _weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return cast(torch.Tensor, ops.onednn_mm(packed, x, bias))

    return linear


def _weight(layer: nn.Module) -> torch.Tensor:
    return cast(torch.Tensor, layer.weight)


def _use(layer: nn.Module, linear: Linear) -> None:
    """Make a layer compute with a function."""
    layer.cpu_linear = linear  # type: ignore[assignment]
