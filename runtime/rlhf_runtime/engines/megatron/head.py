"""What the last stage makes of hidden states: numbers of tokens, where tensor ranks share the
vocabulary; or logits, where nobody says what is to be read."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from rlhf_runtime.engines.megatron.core import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from rlhf_runtime.engines.training import HeadReading, ReadValues, TokenOutputs
from rlhf_runtime.numerics.head import VocabularyShard, head_log_probs


class Question(NamedTuple):
    """What is to be read of a micro-batch."""

    reading: HeadReading
    predictors: Tensor
    """int64[n]: positions in the flattened [longest, sequences], whose hidden states predict."""
    targets: Tensor
    """int64[n]: the tokens that are predicted."""


def read_answer(found: Tensor, reading: HeadReading) -> TokenOutputs:
    """The numbers in what a stage with a `Question` returned: float32[1 or 2, n]."""
    if isinstance(reading, ReadValues) or not reading.with_entropy:
        return TokenOutputs(found[0])
    return TokenOutputs(found[0], found[1] if reading.entropy_gradient else found[1].detach())


class Head:
    """Takes the place of the forward pass of a stage's output layer."""

    def __init__(
        self,
        layer: nn.Module,
        own: range | None,
        group: dist.ProcessGroup,
        sequence_parallel: bool,
    ) -> None:
        """Change the layer.

        Args:
            layer: Megatron's output layer, or a `ScalarLayer`.
            own: this rank's part of the vocabulary. None: a scalar head, which all ranks have.
            group: the tensor ranks.
            sequence_parallel: whether a rank gets its positions of the sequences only.
        """
        self._layer = layer
        self._own = own
        self._group = group
        self._sequence_parallel = sequence_parallel
        self._logits = layer.forward
        layer.forward = self._forward
        self.question: Question | None = None
        """Of the micro-batch that is computed next."""

    def _forward(self, given: Tensor, weight: Tensor | None = None, **options: Any) -> Any:
        """The layer's forward pass, with no bias: of `given[longest, sequences, hidden]` it makes
        [n, 1 or 2]."""
        asked = self.question
        if asked is None:
            return self._logits(given, weight=weight, **options)
        if weight is None:
            weight = self._layer.get_parameter("weight")
        hidden = self._positions(given).flatten(0, 1)[asked.predictors]
        if isinstance(asked.reading, ReadValues):
            return linear(hidden, weight).float(), None
        assert self._own is not None, "a scalar head has no log-probabilities"
        found = head_log_probs(
            hidden,
            weight[: len(self._own)],
            asked.targets,
            asked.reading.temperature,
            asked.reading.with_entropy,
            VocabularyShard(self._own, self._group) if self._group.size() > 1 else None,
        )
        return torch.stack([each for each in found if each is not None], dim=1), None

    def _positions(self, given: Tensor) -> Tensor:
        """Hidden states of all positions; their gradients are summed over ranks that have parts of
        them, as those that share the vocabulary do."""
        sums = self._own is not None
        if self._sequence_parallel:
            gathered: Tensor = gather_from_sequence_parallel_region(
                given, tensor_parallel_output_grad=sums, group=self._group
            )
            return gathered
        if not sums:
            return given
        copied: Tensor = copy_to_tensor_model_parallel_region(given, group=self._group)
        return copied


class ScalarLayer(nn.Module):
    """An output layer with one output, which tensor ranks hold alike."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, dtype=dtype))
