"""Passes: the forward and backward passes of micro-batches through one stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from rlhf_runtime.engines.megatron.head import HeadRequest
from rlhf_runtime.engines.megatron.stage import Stage


@dataclass(frozen=True)
class Inputs:
    """Inputs of one micro-batch, the same on all stages."""

    token_ids: torch.Tensor
    """int64[sequences, longest], padded on the right."""
    position_ids: torch.Tensor | None = None
    """int64[sequences, longest]; None: 0, 1, 2, ... in every sequence."""
    attention_mask: torch.Tensor | None = None
    """bool[sequences, 1, longest, longest], true where attention is allowed; None: causal."""
    request: HeadRequest | None = None
    """Outputs of the last stage; None: logits."""


ConsumeOutputs = Callable[[int, torch.Tensor], torch.Tensor | None]
"""Called on ranks of the last stage with a micro-batch's number and the result of its request;
returns this rank's share of the loss. Every tensor rank computes the same share."""


class StagePasses:
    """Forward and backward passes of micro-batches through one stage."""

    def __init__(
        self,
        model: Any,
        stage: Stage,
        micro_batches: Iterable[Inputs],
        consume: ConsumeOutputs,
        *,
        trains: bool,
    ) -> None:
        """Prepare the passes of some micro-batches.

        Args:
            model: computes the forward pass: the stage, or what wraps it.
            stage: this rank's.
            micro_batches: consumed lazily, in order.
            consume: computes every micro-batch's share of the loss.
            trains: True if every forward pass is followed by a backward pass.
        """
        self.stage = stage
        self._model = model
        self._micro_batches = enumerate(micro_batches)
        self._inputs: dict[int, Inputs] = {}
        """Inputs by micro-batch, until its forward pass."""
        self._consume = consume
        self._trains = trains
        self._hidden: dict[int, torch.Tensor] = {}
        """Received inputs by micro-batch, until their gradients are computed."""
        self._outputs: dict[int, torch.Tensor | GradientEdge | None] = {}
        """Shares of the loss, or edges of sent outputs, until their backward passes."""
        self._shapes: dict[int, tuple[int, ...]] = {}

    def buffer(self, micro_batch: int, *, is_gradient: bool) -> torch.Tensor:
        """Allocate memory for hidden states from the stage before, or gradients from the one
        after: [length / tensor ranks if they share sequences, sequences, hidden]."""
        if is_gradient:
            shape = self._shapes.pop(micro_batch)
        else:
            shape = self._shape(self._read_inputs(micro_batch))
        config = self.stage.config
        return torch.empty(shape, dtype=config.pipeline_dtype, device=self.stage.parallel.device)

    def forward(self, micro_batch: int, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """Run a micro-batch forward.

        Args:
            micro_batch: the next one.
            hidden: outputs of the stage before; None on the first stage.

        Returns:
            The message for the next stage; None on the last one.
        """
        inputs = self._read_inputs(micro_batch)
        del self._inputs[micro_batch]
        if hidden is not None and self._trains:
            self._hidden[micro_batch] = hidden.requires_grad_()
        self.stage.set_input_tensor(hidden)
        output: torch.Tensor = self._model(
            inputs.token_ids, inputs.position_ids, inputs.attention_mask, request=inputs.request
        )
        self.stage.set_input_tensor(None)  # otherwise the model keeps it until the next pass
        if self.stage.parallel.is_last_stage:
            share = self._consume(micro_batch, output)
            if self._trains:
                self._outputs[micro_batch] = share
            return None
        if self._trains:
            # The backward pass needs the graph, not the values: their memory is free once sent.
            self._outputs[micro_batch] = get_gradient_edge(output)
            self._shapes[micro_batch] = tuple(output.shape)
        return output.detach().contiguous()

    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Run a micro-batch backward, and add to the gradients of weights.

        Args:
            micro_batch: whose forward pass has run.
            gradient: of this stage's outputs; None on the last stage.

        Returns:
            The message for the stage before; None on the first one.
        """
        output = self._outputs.pop(micro_batch)
        hidden = self._hidden.pop(micro_batch, None)
        # A loss of no predictors may be a constant.
        if not isinstance(output, torch.Tensor) or output.requires_grad:
            assert output is not None, "training computes losses"
            torch.autograd.backward(output, gradient)
        if hidden is None:
            return None
        return torch.zeros_like(hidden) if hidden.grad is None else hidden.grad.contiguous()

    def _read_inputs(self, micro_batch: int) -> Inputs:
        # What arrives for a micro-batch may come before earlier micro-batches go forward.
        while micro_batch not in self._inputs:
            number, inputs = next(self._micro_batches)
            self._inputs[number] = inputs
        return self._inputs[micro_batch]

    def _shape(self, inputs: Inputs) -> tuple[int, ...]:
        sequences, length = inputs.token_ids.shape
        config = self.stage.config
        ranks = self.stage.parallel.at.tensor_size if config.sequence_parallel else 1
        return length // ranks, sequences, config.hidden_size
