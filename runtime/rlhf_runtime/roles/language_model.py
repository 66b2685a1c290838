"""A causal language model: a policy that is trained and generates, or a frozen reference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlhf_flow.step.calls import TrainOptions
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_runtime.calls.inputs import BatchInputs, CallInputs
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import ReadLogProbs, TokenOutputs, TrainingEngine, WeightedLoss
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.engines import make_engine, offload_methods
from rlhf_runtime.roles.generation import Generation
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import (
    MiniBatch,
    comparison_micro_batches,
    micro_batches,
    mini_batches,
)
from rlhf_runtime.roles.policy_loss_fn import PolicyLossFn, mismatch_rejection
from rlhf_runtime.roles.preference_loss_fn import DpoLossFn
from rlhf_runtime.roles.sequences import infer
from rlhf_runtime.roles.updates import leave_out_update, take_update


class LanguageModelRole:
    """Trains and infers, and takes part in generation where the plan says so."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._temperature = context.job.spec.rollout.temperature
        self.engine: TrainingEngine = make_engine(context)
        self.methods: dict[str, Callable[[CallInputs], Result]] = {
            "log_probs": self.log_probs,
            "train": self.train,
            **offload_methods(self.engine, context.role_plan.offload),
        }
        self.generation: Generation | None = None
        if context.role_plan.generates:
            self.generation = Generation(context, self.engine)
            self.methods |= self.generation.methods

    def close(self) -> None:
        """Close the generation engine."""
        if self.generation is not None:
            self.generation.close()

    def log_probs(self, inputs: CallInputs) -> Result:
        """Compute log-probabilities of the responses with the training engine."""
        (field,) = inputs.call.writes
        tokens = self._context.micro_batch_tokens
        reading = ReadLogProbs(self._temperature_of(inputs))
        return infer(self.engine, inputs, tokens, field, reading)

    def train(self, inputs: CallInputs) -> Result:
        """Run one or more optimizer steps on the batch."""
        options = inputs.call.options
        assert isinstance(options, TrainOptions)
        # The role starts to train later, such as a policy while its critic warms up.
        if inputs.step <= options.from_step:
            return Result()
        role, losses = self._context.role, (options.loss, *options.auxiliary)
        batches = [
            self._mini_batches(batch, loss)
            for batch, loss in zip((inputs, *inputs.auxiliary), losses, strict=True)
        ]
        metrics, temperature = MetricAccumulator(), self._temperature_of(inputs)
        # Every epoch repeats the mini-batches in the same order.
        for own, *others in list(zip(*batches, strict=True)) * options.loss.updates(1):
            auxiliary = zip(others, options.auxiliary, strict=True)
            weighted = [
                self._weighted_loss(own, options.loss, "loss", metrics, temperature),
                *(
                    self._weighted_loss(batch, loss, "cross_entropy", metrics, temperature)
                    for batch, loss in auxiliary
                ),
            ]
            # Without a response that counts, only Adam's momentum would move the weights.
            if options.loss.leaves_out_rows and all(batch.is_empty for batch in (own, *others)):
                leave_out_update(self.engine, role, metrics, own.share)
            else:
                take_update(self.engine, weighted, role, metrics, own.share)
            # DPO averages over pairs, not tokens.
            if not isinstance(options.loss, Dpo):
                metrics.record_tokens(role, own)
        return Result(statistics=metrics.statistics())

    def _temperature_of(self, inputs: CallInputs) -> float:
        """Temperature of a call's log-probabilities."""
        # Sampled responses have the probabilities of the distribution that they were sampled from.
        # No temperature was used for the data's.
        return self._temperature if inputs.reads_samples else 1.0

    def _mini_batches(self, inputs: BatchInputs, loss: Loss) -> list[MiniBatch]:
        max_tokens = self._context.job.spec.rollout.max_response_tokens
        parallel = self._context.parallel
        if not isinstance(loss, ClippedLoss):
            return mini_batches(inputs, parallel, max_tokens)
        return mini_batches(inputs, parallel, max_tokens, loss.counted, mismatch_rejection(loss))

    def _weighted_loss(
        self,
        batch: MiniBatch,
        loss: Loss,
        metric: str,
        metrics: MetricAccumulator,
        temperature: float,
    ) -> WeightedLoss:
        """Set up a loss on a mini-batch.

        Args:
            metric: name of the cross-entropy among the role's metrics.
            temperature: of the log-probabilities; a cross-entropy has none.
        """
        role, tokens = self._context.role, self._context.micro_batch_tokens
        match loss:
            case ClippedLoss():
                policy = PolicyLossFn(batch, loss, role, metrics)
                trained, no_grad = (
                    micro_batches(batch, self.engine, tokens, rows)
                    for rows in policy.split_by_gradient()
                )
                # Entropies are always a metric, but need a gradient only for the bonus.
                has_bonus = loss.entropy_coefficient != 0
                reading = ReadLogProbs(temperature, True, entropy_gradient=has_bonus)
                return WeightedLoss(reading, trained, policy, no_grad)
            case CrossEntropy():
                supervised = CrossEntropyLossFn(batch, loss, f"{role}/{metric}", metrics)
                parts = micro_batches(batch, self.engine, tokens)
                return WeightedLoss(ReadLogProbs(), parts, supervised)
            case Dpo():
                dpo = DpoLossFn(batch, loss, self._context.parallel, role, metrics)
                paired = dpo.comparison.paired_rows()
                complete, split = comparison_micro_batches(batch, self.engine, tokens, paired)
                dpo.comparison.mark_split(split)
                reading = ReadLogProbs(temperature)
                return WeightedLoss(reading, complete + split, dpo, split)
            case ValueLoss() | BradleyTerry():
                raise AssertionError("a language model has no values and no scores")


class CrossEntropyLossFn:
    """The cross-entropy of one mini-batch, called with the log-probabilities of each micro-batch.

    The metric leaves the loss's weight out.
    """

    def __init__(
        self, batch: MiniBatch, loss: CrossEntropy, metric: str, metrics: MetricAccumulator
    ) -> None:
        self._num_tokens = max(1, batch.denominators.num_tokens)
        self._weight = loss.weight
        self._metric = metric
        self._metrics = metrics
        # A mini-batch without tokens has no weight in the mean.
        if batch.denominators.num_tokens:
            metrics.record_mean(metric, 0.0, batch.share)

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """Return this micro-batch's share of the mini-batch's loss."""
        share = -outputs.values.sum() / self._num_tokens
        self._metrics.record_mean(self._metric, share, 0.0)
        return share * self._weight
