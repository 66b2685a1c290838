"""A training engine without a network: what comes next depends on the last token alone.

It has what engines have in common: the walk over micro-batches, as many on every rank, and the
optimizer. A step takes a millisecond, so that losses can be tried on many batches and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rlhf_runtime.engines.base import EngineBase, ResidentTensors
from rlhf_runtime.engines.optimizer import Optimizer
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing, empty_micro_batch, pad_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import (
    Consume,
    HeadReading,
    ReadValues,
    TokenOutputs,
    WeightedLoss,
)
from rlhf_runtime.hooks import noop
from rlhf_runtime.numerics.entropy import token_log_probs
from rlhf_runtime.reshard.views import Views
from rlhf_sizing.costs import SequenceCost

from .few_rows import VOCABULARY


class Bigrams(nn.Module):
    """A row of outputs for every token: of what follows it."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(VOCABULARY, num_outputs, generator=draw))

    def forward(self, token_ids: torch.Tensor) -> Any:
        """As models of transformers give it."""
        return SimpleNamespace(logits=self.weight[token_ids])


class BigramEngine(EngineBase):
    """Every rank has all weights, and sums gradients with the others."""

    def __init__(self, parallel: ParallelContext, value_head: bool = False) -> None:
        super().__init__(parallel, noop)
        self.module = Bigrams(1 if value_head else VOCABULARY)

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        self._optimizer = Optimizer(dict(self.module.named_parameters()), settings)

    def packing(self, max_padded_tokens: int) -> Packing:
        return Packing(max_padded_tokens, SequenceCost(8), share_prompts=True)

    @torch.no_grad()
    def _infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        rounds = self._rounds(len(micro_batches))
        for part in pad_batches(micro_batches, rounds, empty_micro_batch()):
            consume(self._outputs(part, reading), part)

    @torch.no_grad()
    def _forward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        for part, term in parts:
            term.loss(self._outputs(part, term.reading), part)

    def _forward_backward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        for part, term in parts:
            torch.autograd.backward(term.loss(self._outputs(part, term.reading), part))
        for parameter in self.module.parameters():
            assert parameter.grad is not None, "also without rows there is a gradient"
            parameter.grad = self.parallel.sum(parameter.grad)

    def _outputs(self, part: MicroBatch, reading: HeadReading) -> TokenOutputs:
        self.parallel.max(torch.zeros(1))  # as FSDP, which gathers weights in every pass
        logits = self.module.weight[part.token_ids.flatten()[part.predictors]]
        if isinstance(reading, ReadValues):
            return TokenOutputs(logits[:, 0])
        return TokenOutputs(
            *token_log_probs(logits, part.targets, reading.temperature, reading.with_entropy)
        )

    def master_views(self) -> Views:
        raise NotImplementedError("nobody copies it")

    def _resident_tensors(self) -> ResidentTensors:
        return ResidentTensors(list(self.module.parameters()))
