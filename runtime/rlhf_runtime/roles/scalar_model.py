"""A language model with a scalar head: a critic, trained on returns, or a reward model, trained on
pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import TrainOptions
from rlhf_flow.step.columns import FINISHED, RECORD, RESPONSE_TEXT
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, ValueLoss
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.data.retokenizer import retokenizers
from rlhf_runtime.data.source_setting import Split
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.devices import to_device
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import ReadValues, TokenOutputs, TrainingEngine, WeightedLoss
from rlhf_runtime.numerics.losses import aggregate, clipped_value_loss
from rlhf_runtime.numerics.padding import pad
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.engines import make_engine, offload_methods
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import (
    MiniBatch,
    comparison_micro_batches,
    micro_batches,
    mini_batches,
)
from rlhf_runtime.roles.preference_loss_fn import BradleyTerryLossFn
from rlhf_runtime.roles.sequences import PROMPTS, RESPONSES, as_tensor, infer, infer_scores
from rlhf_runtime.roles.updates import leave_out_update, take_update


class ScalarModelRole:
    """Gives one number per token: the value before it or, after the last, the response's score."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self.engine: TrainingEngine = make_engine(context, value_head=True)
        self.generation = None
        self._retokenizers = retokenizers(context.job.spec, context.role, context.folder)
        self.methods = {
            "values": self.values,
            "scores": self.scores,
            "scores_of_texts": self.scores_of_texts,
            "train": self.train,
            **offload_methods(self.engine, context.role_plan.offload),
        }

    def close(self) -> None:
        """Do nothing: there is no generation engine."""

    def values(self, inputs: CallInputs) -> Result:
        """Compute the value before each response token."""
        (field,) = inputs.call.writes
        tokens = self._context.micro_batch_tokens
        return infer(self.engine, inputs, tokens, field, ReadValues())

    def scores(self, inputs: CallInputs) -> Result:
        """Score each response, after its last token."""
        rows = inputs.rows()
        columns, index = inputs.load(rows), inputs.index.find(rows)
        return self._score(inputs, columns[PROMPTS], columns[RESPONSES], index)

    def scores_of_texts(self, inputs: CallInputs) -> Result:
        """Score each response in tokens of this model's own tokenizer."""
        rows = inputs.rows()
        columns, index = inputs.load(rows), inputs.index.find(rows)
        split = Split.EVALUATION if inputs.graph is GraphName.EVALUATION else Split.TRAIN
        sequences = self._retokenizers[split].sequences(
            columns[RECORD].texts(),
            columns[RESPONSE_TEXT].texts(),
            columns[FINISHED].values.astype(np.bool_),
            index.groups,
        )
        return self._score(inputs, sequences.prompts, sequences.responses, index)

    def _score(
        self, inputs: CallInputs, prompts: Column, responses: Column, index: ShardIndex
    ) -> Result:
        (field,) = inputs.call.writes
        tokens = self._context.micro_batch_tokens
        scores = infer_scores(self.engine, prompts, responses, index.groups, tokens)
        # One score that is not finite would make a whole group's advantages NaN.
        if wrong := int((~torch.isfinite(scores)).sum()):
            raise RewardError(
                f"the model of {self._context.role} gives scores that are not finite: got {wrong} "
                f"of {len(scores)}, allowed finite numbers; choose another model, or precision: "
                "float32"
            )
        metrics = MetricAccumulator()
        metrics.record_mean(self._context.score_metric, float(scores.double().sum()), len(scores))
        return Result({field: Column(scores.numpy())}, metrics.statistics(), index)

    def train(self, inputs: CallInputs) -> Result:
        """Run one or more optimizer steps on the batch."""
        options = inputs.call.options
        assert isinstance(options, TrainOptions)
        if inputs.step <= options.from_step:
            return Result()
        match options.loss:
            case ValueLoss():
                return self._train_values(inputs, options.loss)
            case BradleyTerry():
                return self._train_scores(inputs, options.loss)
            case ClippedLoss() | CrossEntropy() | Dpo():
                raise AssertionError("a scalar model has no log-probabilities")

    def _train_values(self, inputs: CallInputs, loss: ValueLoss) -> Result:
        spec = self._context.job.spec
        batches = mini_batches(
            inputs,
            self._context.parallel,
            spec.rollout.max_response_tokens,
            loss.counted,
        )
        metrics, role = MetricAccumulator(), self._context.role
        for batch in batches * loss.epochs_per_batch:
            micro = micro_batches(batch, self.engine, self._context.micro_batch_tokens)
            weighted = WeightedLoss(ReadValues(), micro, ValueLossFn(batch, loss, role, metrics))
            if batch.is_empty:
                leave_out_update(self.engine, role, metrics, batch.share)
            else:
                take_update(self.engine, [weighted], role, metrics, batch.share)
            metrics.record_tokens(role, batch)
        return Result(statistics=metrics.statistics())

    def _train_scores(self, inputs: CallInputs, loss: BradleyTerry) -> Result:
        spec = self._context.job.spec
        batches = mini_batches(
            inputs,
            self._context.parallel,
            spec.rollout.max_response_tokens,
        )
        metrics, role = MetricAccumulator(), self._context.role
        tokens = self._context.micro_batch_tokens
        for batch in batches * loss.epochs_per_batch:
            complete, split = (
                # A score is read after the last token only.
                [replace(part, predictors=part.ends) for part in parts]
                for parts in comparison_micro_batches(batch, self.engine, tokens)
            )
            loss_fn = BradleyTerryLossFn(batch, loss, self._context.parallel, role, metrics)
            loss_fn.comparison.mark_split(split)
            weighted = WeightedLoss(ReadValues(), complete + split, loss_fn, split)
            take_update(self.engine, [weighted], role, metrics, batch.share)
        return Result(statistics=metrics.statistics())


class ValueLossFn:
    """The value loss of one mini-batch, called with the values of each micro-batch."""

    def __init__(
        self, batch: MiniBatch, loss: ValueLoss, role: str, metrics: MetricAccumulator
    ) -> None:
        self._batch = batch
        self._loss = loss
        self._metrics = metrics
        self._metric = f"{role}/loss"
        self._values = as_tensor(batch.columns[loss.values])
        self._returns = as_tensor(batch.columns[loss.returns])
        metrics.record_mean(self._metric, 0.0, batch.share)

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """Return this micro-batch's share of the mini-batch's loss."""
        device = outputs.values.device
        value_loss = clipped_value_loss(
            outputs.values,
            to_device(self._values[part.tokens], device),
            to_device(self._returns[part.tokens], device),
            self._loss.clip_range,
        )
        padded, mask = pad(value_loss.token_losses, part.response_lengths)
        mask &= to_device(self._batch.kept[part.rows, None], device)
        share = aggregate(padded, mask, self._loss.aggregation, self._batch.denominators)
        self._metrics.record_mean(self._metric, share, 0.0)
        return share
