"""A causal language model: a policy, which is trained and generates, or one that is only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rlhf_flow.step.calls import TrainOptions
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import LossTerm, ReadLogProbs, TokenOutputs, TrainingEngine
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.engines import make_engine
from rlhf_runtime.roles.generation import Generation
from rlhf_runtime.roles.offloading import offloading
from rlhf_runtime.roles.policy_terms import PolicyTerms, agreeing
from rlhf_runtime.roles.preference_terms import DpoTerms
from rlhf_runtime.roles.sequences import infer
from rlhf_runtime.roles.training import (
    Means,
    MiniBatch,
    compared_micro_batches,
    micro_batches,
    mini_batches,
)
from rlhf_runtime.workers.inputs import BatchInputs, Inputs


class LanguageModel:
    """Trains, and takes part in generation by vLLM, as far as the plan needs it on this rank."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._temperature = context.job.spec.rollout.temperature
        self.engine: TrainingEngine = make_engine(context)
        self.methods: dict[str, Callable[[Inputs], Result]] = {
            "log_probs": self.log_probs,
            "train": self.train,
            **offloading(self.engine, context.planned.offload),
        }
        self.generation: Generation | None = None
        if context.planned.generates:
            self.generation = Generation(context, self.engine)
            self.methods |= self.generation.methods

    def close(self) -> None:
        """End the generation engine."""
        if self.generation is not None:
            self.generation.close()

    def log_probs(self, inputs: Inputs) -> Result:
        """Log-probabilities of the responses at the sampling temperature, as the training engine
        computes them."""
        (field,) = inputs.call.writes
        tokens, reading = self._context.micro_batch_tokens, ReadLogProbs(self._temperature)
        return infer(self.engine, inputs, tokens, field, reading)

    def train(self, inputs: Inputs) -> Result:
        """One or more optimizer steps on the batch."""
        options = inputs.call.options
        assert isinstance(options, TrainOptions)
        if inputs.step <= options.from_step:
            return Result()
        losses = (options.loss, *options.auxiliary)
        batches = [
            self._mini_batches(batch, loss)
            for batch, loss in zip((inputs, *inputs.auxiliary), losses, strict=True)
        ]
        means = Means()
        for own, *others in list(zip(*batches, strict=True)) * options.loss.updates(1):
            auxiliary = zip(others, options.auxiliary, strict=True)
            terms = [
                self._term(own, options.loss, "loss", means),
                *(self._term(batch, loss, "cross_entropy", means) for batch, loss in auxiliary),
            ]
            self._step(terms, means, own.share)
            if not isinstance(options.loss, Dpo):
                means.note_tokens(self._context.role, own)
        return Result(statistics=means.statistics())

    def _mini_batches(self, inputs: BatchInputs, loss: Loss) -> list[MiniBatch]:
        longest = self._context.job.spec.rollout.max_response_tokens
        parallel = self._context.parallel
        if not isinstance(loss, ClippedLoss):
            return mini_batches(inputs, parallel, longest)
        return mini_batches(inputs, parallel, longest, loss.valid, agreeing(loss))

    def _term(self, batch: MiniBatch, loss: Loss, metric: str, means: Means) -> LossTerm:
        """A loss on a mini-batch.

        Args:
            metric: what the loss is called among the role's metrics.
        """
        role, tokens = self._context.role, self._context.micro_batch_tokens
        match loss:
            case ClippedLoss():
                policy = PolicyTerms(batch, loss, role, means)
                trained, without_gradient = (
                    micro_batches(batch, self.engine, tokens, rows)
                    for rows in policy.rows_by_signal()
                )
                has_bonus = loss.entropy_coefficient != 0
                reading = ReadLogProbs(self._temperature, True, entropy_gradient=has_bonus)
                return LossTerm(reading, trained, policy, without_gradient)
            case CrossEntropy():
                supervised = SupervisedTerms(batch, loss, f"{role}/{metric}", means)
                parts = micro_batches(batch, self.engine, tokens)
                return LossTerm(ReadLogProbs(), parts, supervised)
            case Dpo():
                terms = DpoTerms(batch, loss, self._context.parallel, role, means)
                paired = terms.compared.paired_rows()
                whole, split = compared_micro_batches(batch, self.engine, tokens, paired)
                terms.compared.split(split)
                return LossTerm(ReadLogProbs(self._temperature), whole + split, terms, split)
            case ValueLoss() | BradleyTerry():
                raise AssertionError("a language model gives no values and no scores")

    def _step(self, terms: Sequence[LossTerm], means: Means, share: float) -> None:
        rate = self.engine.learning_rate
        norm = self.engine.update(terms)
        means.note_update(self._context.role, rate, norm, share)


class SupervisedTerms:
    """The cross-entropy of one mini-batch: called with the log-probabilities of each
    micro-batch. The metric is without the loss's weight."""

    def __init__(self, batch: MiniBatch, loss: CrossEntropy, metric: str, means: Means) -> None:
        self._num_tokens = max(1, batch.denominators.num_tokens)
        self._weight = loss.weight
        self._metric = metric
        self._means = means
        if batch.denominators.num_tokens:
            means.add(metric, 0.0, batch.share)

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        share = -outputs.values.sum() / self._num_tokens
        self._means.add(self._metric, share, 0.0)
        return share * self._weight
