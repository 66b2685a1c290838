"""A language model with a value head: a critic, trained on returns."""

from __future__ import annotations

import torch

from rlhf_flow.calls import TrainOptions
from rlhf_flow.losses import ValueLoss
from rlhf_runtime.engines.fsdp.model import FsdpModel
from rlhf_runtime.engines.fsdp.packing import MicroBatch
from rlhf_runtime.engines.fsdp.settings import OptimizerSettings
from rlhf_runtime.numerics.aggregation import aggregate
from rlhf_runtime.numerics.padding import length_mask, pad
from rlhf_runtime.numerics.value_loss import clipped_value_loss
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.sequences import as_tensor, infer
from rlhf_runtime.roles.training import Means, MiniBatch, epochs, micro_batches, mini_batches
from rlhf_runtime.workers.inputs import Inputs


class ScalarModel:
    """Values of the states before each response token."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self.model = FsdpModel(
            context.folder,
            context.parallel,
            context.precision,
            trained=context.planned.is_trained,
            value_head=True,
            recompute=context.activation_recompute,
            tick=context.tick,
        )

    def close(self) -> None:
        """There is nothing to end."""

    def values(self, inputs: Inputs) -> Result:
        """The value before each response token."""
        (field,) = inputs.call.writes
        tokens = self._context.micro_batch_tokens
        return infer(self.model, inputs, tokens, field, lambda outputs, _: outputs[:, 0])

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""
        self.model.use_optimizer(settings)

    def train(self, inputs: Inputs) -> Result:
        """One or more optimizer steps towards the returns."""
        options = inputs.call.options
        assert isinstance(options, TrainOptions) and isinstance(options.loss, ValueLoss)
        if inputs.step <= options.from_step:
            return Result()
        spec, loss = self._context.job.spec, options.loss
        assert self.model.optimizer is not None
        batches = mini_batches(
            inputs,
            self._context.parallel,
            spec.rollout.max_response_tokens,
            loss.valid,
        )
        role, means = self._context.role, Means()
        for batch in epochs(batches, loss.epochs_per_batch):
            micro = micro_batches(batch, self.model, self._context.micro_batch_tokens)
            rate = self.model.optimizer.learning_rate
            norm = self.model.update(micro, ValueTerms(batch, loss, role, means))
            means.note_update(role, rate, norm, batch.share)
        return Result(statistics=means.statistics())


class ValueTerms:
    """The value loss of one mini-batch: called with outputs[n, 1] of each micro-batch."""

    def __init__(self, batch: MiniBatch, loss: ValueLoss, role: str, means: Means) -> None:
        self._batch = batch
        self._loss = loss
        self._means = means
        self._metric = f"{role}/loss"
        self._values = as_tensor(batch.columns[loss.values])
        self._returns = as_tensor(batch.columns[loss.returns])
        means.add(self._metric, 0.0, batch.share)

    def __call__(self, outputs: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        device = outputs.device
        terms = clipped_value_loss(
            outputs[:, 0],
            self._values[part.tokens].to(device),
            self._returns[part.tokens].to(device),
            self._loss.clip_range,
        )
        lengths = part.response_lengths.to(device)
        padded, _ = pad(terms.token_losses, lengths)
        kept = self._batch.kept[part.rows].to(device)
        mask = length_mask(lengths) & kept[:, None]
        share = aggregate(padded, mask, self._loss.aggregation, self._batch.denominators)
        self._means.add(self._metric, float(share), 0.0)
        return share
