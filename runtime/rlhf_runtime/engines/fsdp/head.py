"""FsdpHead: replaces the logits of a model's output layer by numbers of the predicted tokens."""

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
from rlhf_runtime.numerics.kept_bits import KeptBits


class FsdpHead:
    """Replaces the forward pass of a model's output layer.

    The layer returns numbers of the predicted tokens in the place of logits. For a model that
    changes its logits afterwards (a soft cap, a scale) it returns logits, of the predicted tokens
    only, and the numbers are computed from the model's result.
    """

    # Inside of the model's own forward pass, because only there FSDP has gathered the weights.

    def __init__(self, model: PreTrainedModel, excluded_tokens: tuple[range, ...] = ()) -> None:
        """Replace the forward pass.

        Args:
            model: of transformers.
            excluded_tokens: tokens of probability 0.
        """
        self._model = model
        self._excluded_tokens = excluded_tokens
        self._layer = model.get_output_embeddings()
        self._layer.forward = self._forward
        self._reading: HeadReading | None = None
        self._part: MicroBatch | None = None
        self._needs_logits = self._layer.bias is not None
        """True if the numbers can only be computed from logits."""

    def run(self, part: MicroBatch, reading: HeadReading) -> TokenOutputs:
        """Run the model forward, and return outputs of the predicted tokens.

        Args:
            part: on the model's device.
            reading: must match the kind of head.
        """
        with self._request(part, reading):
            result = self._run_model(part)
        if isinstance(reading, ReadValues):
            return TokenOutputs(result[:, 0].float())
        if self._needs_logits:
            log_probs_and_entropies = token_log_probs(
                result,
                part.targets,
                reading.temperature,
                reading.with_entropy,
                self._excluded_tokens,
                _kept_bits(part, result.shape[1], result.device),
            )
            return TokenOutputs(*log_probs_and_entropies)
        return TokenOutputs(result[:, 0], result[:, 1] if reading.with_entropy else None)

    @torch.no_grad()
    def hidden(self, part: MicroBatch) -> Tensor:
        """float32[n, hidden]: the layer's inputs at the predictors."""
        captured: list[Tensor] = []
        handle = self._layer.register_forward_pre_hook(
            lambda _, inputs: captured.append(inputs[0].flatten(0, 1)[part.predictors].float())
        )
        try:
            self._run_model(part)
        finally:
            handle.remove()
        return captured[0]

    @torch.no_grad()
    def detect_changed_logits(self, part: MicroBatch) -> None:
        """Test if the model changes the layer's outputs. Call it before the first `run`."""
        captured: list[Tensor] = []
        handle = self._layer.register_forward_hook(lambda _, __, logits: captured.append(logits))
        result = self._run_model(part)
        handle.remove()
        self._needs_logits |= not torch.equal(result, captured[0])

    def _run_model(self, part: MicroBatch) -> Tensor:
        result: Tensor = self._model(
            input_ids=part.token_ids,
            position_ids=part.position_ids,
            attention_mask=part.attention_mask,
            use_cache=False,
        ).logits
        return result

    @contextmanager
    def _request(self, part: MicroBatch, reading: HeadReading) -> Iterator[None]:
        self._part, self._reading = part, reading
        try:
            yield
        finally:
            self._part = self._reading = None

    def _forward(self, inputs: Tensor) -> Tensor:
        """The layer's forward pass; inputs[sequences, longest, hidden]."""
        weight, bias, part = self._layer.weight, self._layer.bias, self._part
        if part is None:
            return linear(inputs, weight, bias)
        # Only predicted positions reach the large matrix product over the vocabulary.
        hidden = inputs.flatten(0, 1)[part.predictors]
        if self._needs_logits or isinstance(self._reading, ReadValues):
            return linear(hidden, weight, bias)
        assert isinstance(self._reading, ReadLogProbs)
        log_probs, entropies = head_log_probs(
            hidden,
            weight,
            part.targets,
            self._reading.temperature,
            self._reading.with_entropy,
            excluded=self._excluded_tokens,
            kept=_kept_bits(part, len(weight), weight.device),
        )
        if entropies is None:
            return log_probs[:, None]
        kept = entropies if self._reading.entropy_gradient else entropies.detach()
        return torch.stack([log_probs, kept], dim=1)


def _kept_bits(part: MicroBatch, vocabulary: int, device: torch.device) -> KeptBits | None:
    return None if part.kept is None else part.kept.bits(range(vocabulary), device)
