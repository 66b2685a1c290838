"""The policy-gradient loss of a mini-batch, with its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from rlhf_api.spec.policy_loss import KlEstimator, PolicyObjective
from rlhf_flow.step.columns import ROLLOUT_LOG_PROBS
from rlhf_flow.step.losses import ClippedLoss
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.devices import to_device
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import TokenOutputs
from rlhf_runtime.numerics.losses import (
    TokenPolicyLoss,
    aggregate,
    cispo_loss,
    clipped_policy_loss,
    corrected_kl,
    importance_weights,
    kl_estimate,
    log_ratios,
    passes_mismatch_threshold,
    sequence_log_ratios,
)
from rlhf_runtime.numerics.padding import pad
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import LossMask, MiniBatch, RowFilter, all_true
from rlhf_runtime.roles.sequences import as_tensor


def mismatch_rejection(loss: ClippedLoss) -> RowFilter | None:
    """Return the filter that drops responses whose likelihood differs too much between the training
    and the generation engine; None if the loss rejects none."""
    threshold = loss.rejection_threshold
    # Without log-probabilities of the training engine there is nothing to compare.
    if threshold is None or loss.old_log_probs == ROLLOUT_LOG_PROBS:
        return None

    def row_filter(columns: Mapping[str, Column], mask: LossMask) -> torch.Tensor:
        trainer, rollout = (
            as_tensor(columns[name])[mask.flags] for name in (loss.old_log_probs, ROLLOUT_LOG_PROBS)
        )
        return passes_mismatch_threshold(trainer, rollout, mask.counts, threshold)

    return row_filter


class _TokenInputs(NamedTuple):
    """Columns of a micro-batch's predicted tokens, on the model's device."""

    advantages: torch.Tensor
    old_log_probs: torch.Tensor
    rollout_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor | None
    kept_rows: torch.Tensor
    """bool[rows]: True if the row counts in the loss."""
    kept: torch.Tensor
    """bool[tokens]: True if the token's row counts in the loss."""
    num_kept: float
    """Number of kept tokens."""


class PolicyLossFn:
    """The policy loss of one mini-batch, called with the log-probabilities and entropies of each
    micro-batch."""

    def __init__(
        self, batch: MiniBatch, loss: ClippedLoss, role: str, metrics: MetricAccumulator
    ) -> None:
        self._batch = batch
        self._loss = loss
        self._role = role
        self._metrics = metrics
        self._advantages = as_tensor(batch.columns[loss.advantages])
        self._old = as_tensor(batch.columns[loss.old_log_probs])
        # Old log-probabilities come from the training engine or from the sampler itself.
        self._has_trainer_log_probs = loss.old_log_probs != ROLLOUT_LOG_PROBS
        self._rollout = as_tensor(batch.columns[ROLLOUT_LOG_PROBS])
        reference = loss.reference_log_probs if loss.kl_coefficient > 0 else None
        self._reference = None if reference is None else as_tensor(batch.columns[reference])
        # The weight counts once per mini-batch; each micro-batch adds its share with weight 0.
        metrics.record_mean(f"{role}/loss", 0.0, batch.share)
        if mismatch_rejection(loss) is not None:
            valid = all_true(batch.columns, loss.counted)
            # Valid rows that do not count were rejected by the mismatch filter.
            rejected = float((valid & ~batch.kept).sum())
            metrics.record_mean(f"{role}/rejected_sequences", rejected, float(valid.sum()))

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """Return this micro-batch's share of the mini-batch's loss."""
        log_probs, entropy = outputs
        assert entropy is not None, "policy losses read entropies"
        inputs = self._inputs(part, log_probs.device)
        policy_loss = self._policy_loss(log_probs, part, inputs)
        losses = policy_loss.token_losses
        if self._has_trainer_log_probs:
            # Corrects for tokens that the generation engine sampled with other probabilities.
            old, rollout = inputs.old_log_probs, inputs.rollout_log_probs
            weights = importance_weights(old, rollout, self._loss.importance_cap)
            self._record("importance_weight", weights, inputs)
            losses = losses * weights
        # A bonus: losses are minimized, and entropy should not collapse.
        if self._loss.entropy_coefficient:
            losses = losses - self._loss.entropy_coefficient * entropy
        if inputs.reference_log_probs is not None:
            assert self._loss.kl_estimator is not None
            kl = kl_estimate(log_probs, inputs.reference_log_probs, self._loss.kl_estimator)
            if self._loss.kl_estimator is KlEstimator.K3_CORRECTED:
                kl = corrected_kl(kl, log_ratios(log_probs, inputs.old_log_probs))
            losses = losses + self._loss.kl_coefficient * kl
            self._record("kl", kl, inputs)
        self._record("entropy", entropy, inputs)
        self._record_ratios(policy_loss, inputs)
        self._record_mismatch(log_probs, inputs)
        share = self._aggregate(losses, part, inputs)
        self._metrics.record_mean(f"{self._role}/loss", share, 0.0)
        return share

    def split_by_gradient(self) -> tuple[Rows, Rows]:
        """Split the rows into those that can have a gradient and those that cannot.

        Rows without a gradient are excluded, have no counting token, or have zero advantages on all
        of these. An entropy bonus or a KL term gives every row with a counting token a gradient.
        """
        flags, counts = self._batch.loss_mask
        kept = (self._batch.kept & (counts > 0)).numpy()
        if not self._loss.entropy_coefficient and self._reference is None:
            # Sum of |advantage| over the counting tokens of each row.
            row_of = np.repeat(np.arange(len(kept)), counts)
            sizes = self._advantages[flags].abs().numpy()
            total_sizes = np.bincount(row_of, sizes, minlength=len(kept))
            # NaN counts as a gradient: the update must show it instead of dropping the row.
            kept = kept & (total_sizes != 0)
        return np.flatnonzero(kept), np.flatnonzero(~kept)

    def _inputs(self, part: MicroBatch, device: torch.device) -> _TokenInputs:
        """Copy what the micro-batch needs to the device, once."""

        def select(column: torch.Tensor) -> torch.Tensor:
            return to_device(column[part.tokens], device)

        # Selected on the host: indexing on a device would need the indices there first.
        kept_rows = self._batch.kept[part.rows]
        kept = torch.repeat_interleave(kept_rows, part.response_lengths)
        return _TokenInputs(
            select(self._advantages),
            select(self._old),
            select(self._rollout),
            None if self._reference is None else select(self._reference),
            to_device(kept_rows, device),
            to_device(kept, device),
            float(kept.sum()),
        )

    def _policy_loss(
        self, log_probs: torch.Tensor, part: MicroBatch, inputs: _TokenInputs
    ) -> TokenPolicyLoss:
        """Compute the objective's loss of each token."""
        loss, advantages = self._loss, inputs.advantages
        ratios = log_ratios(log_probs, inputs.old_log_probs)
        low, high = loss.clip_range, loss.clip_range_high
        match loss.objective:
            case PolicyObjective.CLIPPED:
                return clipped_policy_loss(ratios, advantages, low, high, loss.dual_clip)
            case PolicyObjective.GSPO:
                sequence_ratios = sequence_log_ratios(ratios, part.response_lengths, inputs.kept)
                return clipped_policy_loss(sequence_ratios, advantages, low, high)
            case PolicyObjective.CISPO:
                return cispo_loss(log_probs, ratios, advantages, low, high)

    def _aggregate(
        self, losses: torch.Tensor, part: MicroBatch, inputs: _TokenInputs
    ) -> torch.Tensor:
        padded, mask = pad(losses, part.response_lengths)
        mask &= inputs.kept_rows[:, None]
        return aggregate(padded, mask, self._loss.aggregation, self._batch.denominators)

    def _record(self, name: str, values: torch.Tensor, inputs: _TokenInputs) -> None:
        # Summed in float64: many small float32 values would lose digits.
        total = torch.where(inputs.kept, values.detach().double(), 0.0).sum()
        self._metrics.record_mean(f"{self._role}/{name}", total, inputs.num_kept)

    def _record_ratios(self, policy_loss: TokenPolicyLoss, inputs: _TokenInputs) -> None:
        """Record how far the policy has moved from the one that sampled."""
        clipped, ratios = policy_loss.clipped, policy_loss.ratios
        self._record("clip_fraction", (clipped | policy_loss.dual_clipped).float(), inputs)
        self._record("clip_fraction_low", (clipped & (ratios < 1)).float(), inputs)
        self._record("clip_fraction_high", (clipped & (ratios > 1)).float(), inputs)
        # Without tokens the extremes would be infinite.
        if inputs.num_kept:
            ratios = ratios.detach()
            largest = torch.where(inputs.kept, ratios, -torch.inf).max()
            smallest = torch.where(inputs.kept, ratios, torch.inf).min()
            self._metrics.record_max(f"{self._role}/ratio_max", largest)
            self._metrics.record_max(f"{self._role}/inverse_ratio_max", 1 / smallest)

    def _record_mismatch(self, log_probs: torch.Tensor, inputs: _TokenInputs) -> None:
        """Record how far the trainer's log-probabilities are from the generation engine's."""
        # Both sides must belong to the weights that sampled: updates since then are no mismatch.
        trainer = inputs.old_log_probs if self._has_trainer_log_probs else log_probs
        trainer, rollout = trainer.detach(), inputs.rollout_log_probs
        difference = (trainer - rollout).abs()
        self._record("log_prob_difference_mean", difference, inputs)
        self._record("mismatch_kl", kl_estimate(rollout, trainer, KlEstimator.K3), inputs)
        # `max` of no tokens would raise.
        if len(difference):
            self._metrics.record_max(f"{self._role}/log_prob_difference_max", difference.max())
