"""MegatronHead: computes numbers of predicted tokens on the last stage, with the vocabulary cut
over tensor ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from rlhf_runtime.engines.kept_tokens import KeptTokens
from rlhf_runtime.engines.megatron.core import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from rlhf_runtime.engines.training import HeadReading, ReadValues, TokenOutputs
from rlhf_runtime.numerics.head import VocabularyShard, head_log_probs


class HeadRequest(NamedTuple):
    """Tokens of a micro-batch whose outputs the last stage computes."""

    reading: HeadReading
    predictors: Tensor
    """int64[n]: positions in the flattened [longest, sequences] whose hidden states predict."""
    targets: Tensor
    """int64[n]: the predicted tokens."""
    kept: KeptTokens | None = None
    """For each of them the tokens that sampling kept. None: all."""


def to_token_outputs(result: Tensor, reading: HeadReading) -> TokenOutputs:
    """Unpack the result of a stage with a `HeadRequest`: float32[1 or 2, n]."""
    if isinstance(reading, ReadValues) or not reading.with_entropy:
        return TokenOutputs(result[0])
    return TokenOutputs(result[0], result[1] if reading.entropy_gradient else result[1].detach())


class MegatronHead:
    """Replaces the forward pass of a stage's output layer."""

    def __init__(
        self,
        layer: nn.Module,
        own: range | None,
        group: dist.ProcessGroup,
        sequence_parallel: bool,
        excluded_tokens: tuple[range, ...] = (),
    ) -> None:
        """Replace the layer's forward pass.

        Args:
            layer: Megatron's output layer, or a `ScalarLayer`.
            own: this rank's part of the vocabulary. None: a scalar head, which all ranks have.
            group: the tensor ranks.
            sequence_parallel: True if inputs have only this rank's positions of the sequences.
            excluded_tokens: tokens of probability 0.
        """
        self._layer = layer
        self._own = own
        self._group = group
        self._sequence_parallel = sequence_parallel
        self._excluded_tokens = excluded_tokens
        self._logits = layer.forward
        layer.forward = self._forward
        self.request: HeadRequest | None = None
        """Request for the next micro-batch; None: the layer returns logits."""

    def _forward(self, inputs: Tensor, weight: Tensor | None = None, **options: Any) -> Any:
        """The layer's forward pass; inputs[longest, sequences, hidden].

        Returns:
            float32[n, 1 or 2], and None for the bias.
        """
        request = self.request
        if request is None:
            return self._logits(inputs, weight=weight, **options)
        if weight is None:
            weight = self._layer.get_parameter("weight")
        hidden = self._gather_positions(inputs).flatten(0, 1)[request.predictors]
        if isinstance(request.reading, ReadValues):
            return linear(hidden, weight).float(), None
        assert self._own is not None, "a scalar head has no log-probabilities"
        log_probs_and_entropies = head_log_probs(
            hidden,
            weight[: len(self._own)],
            request.targets,
            request.reading.temperature,
            request.reading.with_entropy,
            VocabularyShard(self._own, self._group) if self._group.size() > 1 else None,
            self._excluded_tokens,
            None if request.kept is None else request.kept.bits(self._own, hidden.device),
        )
        columns = [column for column in log_probs_and_entropies if column is not None]
        return torch.stack(columns, dim=1), None

    def _gather_positions(self, inputs: Tensor) -> Tensor:
        """Hidden states of all positions."""
        # With a cut vocabulary each rank has a part of the gradient: the backward pass sums them.
        # With a scalar head every rank has all of it already.
        sums_gradients = self._own is not None
        if self._sequence_parallel:
            gathered: Tensor = gather_from_sequence_parallel_region(
                inputs, tensor_parallel_output_grad=sums_gradients, group=self._group
            )
            return gathered
        if not sums_gradients:
            return inputs
        copied: Tensor = copy_to_tensor_model_parallel_region(inputs, group=self._group)
        return copied


class ScalarLayer(nn.Module):
    """An output layer with one output, replicated on all tensor ranks."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, dtype=dtype))
