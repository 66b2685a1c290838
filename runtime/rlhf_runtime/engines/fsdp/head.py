"""A model's output layer, made to say what is wanted of it instead of logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import HeadReading, ReadLogProbs, ReadValues, TokenOutputs
from rlhf_runtime.numerics.entropy import token_log_probs
from rlhf_runtime.numerics.head import head_log_probs


class Head:
    """Takes the place of the forward pass of a model's output layer.

    It works inside of the model's own forward pass, where FSDP has the layer's weights together,
    and gives back numbers of tokens where the model expects logits. A model that goes on to change
    its logits (a soft cap, a scale) gets logits, of the predicted tokens only; the numbers are
    computed from what it makes of them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._layer = model.get_output_embeddings()
        self._layer.forward = self._forward
        self._reading: HeadReading | None = None
        self._part: MicroBatch | None = None
        self._gives_logits = self._layer.bias is not None
        """Whether the numbers can only be computed from logits."""

    def run(self, part: MicroBatch, reading: HeadReading) -> TokenOutputs:
        """A forward pass of the model, read where tokens are predicted.

        Args:
            part: on the model's device.
            reading: fits the kind of head.
        """
        with self._reads(part, reading):
            found = self._run_model(part)
        if isinstance(reading, ReadValues):
            return TokenOutputs(found[:, 0].float())
        if self._gives_logits:
            return TokenOutputs(
                *token_log_probs(found, part.targets, reading.temperature, reading.with_entropy)
            )
        return TokenOutputs(found[:, 0], found[:, 1] if reading.with_entropy else None)

    @torch.no_grad()
    def hidden(self, part: MicroBatch) -> Tensor:
        """What the layer gets where tokens are predicted, in float32: [n, hidden]."""
        seen: list[Tensor] = []
        handle = self._layer.register_forward_pre_hook(
            lambda _, given: seen.append(given[0].flatten(0, 1)[part.predictors].float())
        )
        try:
            self._run_model(part)
        finally:
            handle.remove()
        return seen[0]

    @torch.no_grad()
    def look_for_changed_logits(self, part: MicroBatch) -> None:
        """Find out whether the model gives back what the layer does. Before the first `run`."""
        given: list[Tensor] = []
        handle = self._layer.register_forward_hook(lambda _, __, logits: given.append(logits))
        found = self._run_model(part)
        handle.remove()
        self._gives_logits |= not torch.equal(found, given[0])

    def _run_model(self, part: MicroBatch) -> Tensor:
        found: Tensor = self._model(
            input_ids=part.token_ids,
            position_ids=part.position_ids,
            attention_mask=part.attention_mask,
            use_cache=False,
        ).logits
        return found

    @contextmanager
    def _reads(self, part: MicroBatch, reading: HeadReading) -> Iterator[None]:
        self._part, self._reading = part, reading
        try:
            yield
        finally:
            self._part = self._reading = None

    def _forward(self, given: Tensor) -> Tensor:
        """The layer's forward pass: `given[sequences, longest, hidden]`."""
        weight, bias, part = self._layer.weight, self._layer.bias, self._part
        if part is None:
            return linear(given, weight, bias)
        hidden = given.flatten(0, 1)[part.predictors]
        if self._gives_logits or isinstance(self._reading, ReadValues):
            return linear(hidden, weight, bias)
        assert isinstance(self._reading, ReadLogProbs)
        log_probs, entropies = head_log_probs(
            hidden, weight, part.targets, self._reading.temperature, self._reading.with_entropy
        )
        if entropies is None:
            return log_probs[:, None]
        kept = entropies if self._reading.entropy_gradient else entropies.detach()
        return torch.stack([log_probs, kept], dim=1)
