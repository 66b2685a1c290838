"""A causal language model: a policy, which is trained and generates, or one that is only read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rlhf_flow import fields
from rlhf_flow.calls import TrainOptions
from rlhf_flow.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.engines.fsdp.model import FsdpModel, LossTerm
from rlhf_runtime.engines.fsdp.packing import MicroBatch
from rlhf_runtime.engines.fsdp.settings import OptimizerSettings
from rlhf_runtime.numerics.aggregation import aggregate
from rlhf_runtime.numerics.entropy import token_log_probs
from rlhf_runtime.numerics.kl import kl_estimate
from rlhf_runtime.numerics.padding import length_mask, pad
from rlhf_runtime.numerics.policy_loss import clipped_policy_loss, importance_weights
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.generation import Generation
from rlhf_runtime.roles.preference_terms import DpoTerms
from rlhf_runtime.roles.sequences import as_tensor, infer
from rlhf_runtime.roles.training import Means, MiniBatch, micro_batches, mini_batches
from rlhf_runtime.workers.inputs import BatchInputs, Inputs


class LanguageModel:
    """Trains by FSDP2 and generates by vLLM in the same process, as far as the plan needs it."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._temperature = context.job.spec.rollout.temperature
        self.model = FsdpModel(
            context.folder,
            context.parallel,
            context.precision,
            trained=context.planned.is_trained,
            recompute=context.activation_recompute,
            tick=context.tick,
        )
        generates = context.planned.generates
        self.generation = Generation(context, self.model) if generates else None
        self.methods = {
            "generate": self.generate,
            "log_probs": self.log_probs,
            "train": self.train,
        }

    def close(self) -> None:
        """End the generation engine."""
        if self.generation is not None:
            self.generation.close()

    def generate(self, inputs: Inputs) -> Result:
        """Responses to prompts, with the log-probabilities of the distribution sampled from."""
        assert self.generation is not None
        return self.generation.generate(inputs)

    def log_probs(self, inputs: Inputs) -> Result:
        """Log-probabilities of the responses at the sampling temperature, as the training engine
        computes them."""

        def read(outputs: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
            targets = micro_batch.targets.to(outputs.device)
            return token_log_probs(outputs, targets, self._temperature)[0]

        (field,) = inputs.call.writes
        return infer(self.model, inputs, self._context.micro_batch_tokens, field, read)

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""
        self.model.use_optimizer(settings)

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
        return Result(statistics=means.statistics())

    def _mini_batches(self, inputs: BatchInputs, loss: Loss) -> list[MiniBatch]:
        longest = self._context.job.spec.rollout.max_response_tokens
        valid = loss.valid if isinstance(loss, ClippedLoss) else None
        return mini_batches(inputs, self._context.parallel, longest, valid)

    def _term(self, batch: MiniBatch, loss: Loss, metric: str, means: Means) -> LossTerm:
        """A loss on a mini-batch.

        Args:
            metric: what the loss is called among the role's metrics.
        """
        role, tokens = self._context.role, self._context.micro_batch_tokens
        match loss:
            case ClippedLoss():
                policy = PolicyTerms(batch, loss, role, self._temperature, means)
                trained, silent = (
                    micro_batches(batch, self.model, tokens, rows)
                    for rows in policy.rows_by_signal()
                )
                return LossTerm(trained, policy, silent)
            case CrossEntropy():
                supervised = SupervisedTerms(batch, loss, f"{role}/{metric}", means)
                return LossTerm(micro_batches(batch, self.model, tokens), supervised)
            case Dpo():
                parallel = self._context.parallel
                compared = DpoTerms(batch, loss, self._temperature, parallel, role, means)
                paired = micro_batches(batch, self.model, tokens, compared.rows(), True)
                return LossTerm(paired, compared)
            case ValueLoss() | BradleyTerry():
                raise AssertionError("a language model gives no values and no scores")

    def _step(self, terms: Sequence[LossTerm], means: Means, share: float) -> None:
        assert self.model.optimizer is not None
        rate = self.model.optimizer.learning_rate
        norm = self.model.update(terms)
        means.note_update(self._context.role, rate, norm, share)


class SupervisedTerms:
    """The cross-entropy of one mini-batch: called with outputs[n, vocabulary] of each micro-batch.
    The metric is without the loss's weight."""

    def __init__(self, batch: MiniBatch, loss: CrossEntropy, metric: str, means: Means) -> None:
        self._num_tokens = max(1, batch.denominators.num_tokens)
        self._weight = loss.weight
        self._metric = metric
        self._means = means
        if batch.denominators.num_tokens:
            means.add(metric, 0.0, batch.share)

    def __call__(self, outputs: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        log_probs, _ = token_log_probs(outputs, part.targets.to(outputs.device))
        share = -log_probs.sum() / self._num_tokens
        self._means.add(self._metric, float(share), 0.0)
        return share * self._weight


class PolicyTerms:
    """The policy loss of one mini-batch: called with outputs[n, vocabulary] of each micro-batch."""

    def __init__(
        self, batch: MiniBatch, loss: ClippedLoss, role: str, temperature: float, means: Means
    ) -> None:
        self._batch = batch
        self._loss = loss
        self._role = role
        self._temperature = temperature
        self._means = means
        self._advantages = as_tensor(batch.columns[loss.advantages])
        self._old = as_tensor(batch.columns[loss.old_log_probs])
        self._old_is_trainers = loss.old_log_probs != fields.ROLLOUT_LOG_PROBS
        self._rollout = as_tensor(batch.columns[fields.ROLLOUT_LOG_PROBS])
        reference = loss.reference_log_probs if loss.kl_coefficient > 0 else None
        self._reference = None if reference is None else as_tensor(batch.columns[reference])
        means.add(f"{role}/loss", 0.0, batch.share)

    def __call__(self, outputs: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        device = outputs.device
        log_probs, entropy = token_log_probs(
            outputs, part.targets.to(device), self._temperature, with_entropy=True
        )
        assert entropy is not None
        terms = clipped_policy_loss(
            log_probs,
            self._old[part.tokens].to(device),
            self._advantages[part.tokens].to(device),
            self._loss.clip_range,
            self._loss.clip_range_high,
            self._loss.dual_clip,
        )
        losses = terms.token_losses
        if self._old_is_trainers:
            weights = importance_weights(
                self._old[part.tokens], self._rollout[part.tokens], self._loss.importance_cap
            )
            self._note("importance_weight", weights, part)
            losses = losses * weights.to(device)
        if self._loss.entropy_coefficient:
            losses = losses - self._loss.entropy_coefficient * entropy
        if self._reference is not None:
            reference = self._reference[part.tokens].to(device)
            kl = kl_estimate(log_probs, reference, self._loss.kl_estimator)
            losses = losses + self._loss.kl_coefficient * kl
            self._note("kl", kl, part)
        self._note("entropy", entropy, part)
        self._note("clip_fraction", (terms.clipped | terms.dual_clipped).float(), part)
        self._note_difference(self._old[part.tokens] if self._old_is_trainers else log_probs, part)
        share = self._aggregate(losses, part)
        self._means.add(f"{self._role}/loss", float(share), 0.0)
        return share

    def rows_by_signal(self) -> tuple[Rows, Rows]:
        """Rows that can have a gradient, and those that cannot: all advantages zero, or excluded.

        With an entropy bonus or a KL term every row that counts has one.
        """
        kept = self._batch.kept.numpy()
        if not self._loss.entropy_coefficient and self._reference is None:
            lengths = self._batch.columns[self._loss.advantages].lengths
            assert lengths is not None
            row_of = np.repeat(np.arange(len(kept)), lengths)
            moved = np.bincount(row_of, self._advantages.abs().numpy(), minlength=len(kept))
            kept = kept & (moved != 0)  # NaN is no silence: its gradient must show it
        return np.flatnonzero(kept), np.flatnonzero(~kept)

    def _kept(self, part: MicroBatch) -> torch.Tensor:
        """bool[n]: whether each token counts."""
        return torch.repeat_interleave(self._batch.kept[part.rows], part.response_lengths)

    def _note(self, name: str, values: torch.Tensor, part: MicroBatch) -> None:
        kept = self._kept(part)
        total = float(values.detach().double().cpu()[kept].sum())
        self._means.add(f"{self._role}/{name}", total, float(kept.sum()))

    def _note_difference(self, log_probs: torch.Tensor, part: MicroBatch) -> None:
        """How far the trainer's log-probabilities are from the generation engine's.

        Both belong to the weights that sampled: updates since then are no disagreement.
        """
        difference = (log_probs.detach().cpu() - self._rollout[part.tokens]).abs()
        self._note("log_prob_difference_mean", difference, part)
        if len(difference):
            self._means.max(f"{self._role}/log_prob_difference_max", float(difference.max()))

    def _aggregate(self, losses: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        lengths = part.response_lengths.to(losses.device)
        padded, _ = pad(losses, lengths)
        kept = self._batch.kept[part.rows].to(losses.device)
        mask = length_mask(lengths) & kept[:, None]
        return aggregate(padded, mask, self._loss.aggregation, self._batch.denominators)
