"""The policy-gradient loss of a mini-batch, and what it tells."""

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
from rlhf_runtime.numerics.aggregation import aggregate
from rlhf_runtime.numerics.kl import kl_estimate
from rlhf_runtime.numerics.padding import pad
from rlhf_runtime.numerics.policy_loss import (
    PolicyLoss,
    agreeing_sequences,
    cispo_loss,
    clipped_policy_loss,
    importance_weights,
    log_ratios,
    sequence_log_ratios,
)
from rlhf_runtime.roles.own_tokens import OwnTokens
from rlhf_runtime.roles.sequences import as_tensor
from rlhf_runtime.roles.training import Keep, Means, MiniBatch


def agreeing(loss: ClippedLoss) -> Keep | None:
    """Which rows both engines take to be about as likely, by a loss's threshold. None: all count.

    Without log-probabilities of the training engine nothing can be compared.
    """
    threshold = loss.rejection_threshold
    if threshold is None or loss.old_log_probs == ROLLOUT_LOG_PROBS:
        return None

    def keep(columns: Mapping[str, Column], own: OwnTokens) -> torch.Tensor:
        trainer, rollout = (
            as_tensor(columns[name])[own.flags] for name in (loss.old_log_probs, ROLLOUT_LOG_PROBS)
        )
        return agreeing_sequences(trainer, rollout, own.counts, threshold)

    return keep


class _Kept(NamedTuple):
    """Which tokens of a micro-batch are of rows that count."""

    mask: torch.Tensor
    """bool[n], on the model's device."""
    num_tokens: float
    """How many they are."""


class PolicyTerms:
    """The policy loss of one mini-batch: called with the log-probabilities and
    entropies of each micro-batch."""

    def __init__(self, batch: MiniBatch, loss: ClippedLoss, role: str, means: Means) -> None:
        self._batch = batch
        self._loss = loss
        self._role = role
        self._means = means
        self._advantages = as_tensor(batch.columns[loss.advantages])
        self._old = as_tensor(batch.columns[loss.old_log_probs])
        self._old_is_trainers = loss.old_log_probs != ROLLOUT_LOG_PROBS
        self._rollout = as_tensor(batch.columns[ROLLOUT_LOG_PROBS])
        reference = loss.reference_log_probs if loss.kl_coefficient > 0 else None
        self._reference = None if reference is None else as_tensor(batch.columns[reference])
        means.add(f"{role}/loss", 0.0, batch.share)
        if agreeing(loss) is not None:
            valid = as_tensor(batch.columns[loss.valid]).bool()
            rejected = float((valid & ~batch.kept).sum())
            means.add(f"{role}/rejected_sequences", rejected, float(valid.sum()))

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        log_probs, entropy = outputs
        assert entropy is not None, "entropies are read, too"
        device = log_probs.device
        kept = self._kept(part, device)
        terms = self._policy_loss(log_probs, part, kept)
        losses = terms.token_losses
        old = to_device(self._old[part.tokens], device)
        if self._old_is_trainers:
            rollout = to_device(self._rollout[part.tokens], device)
            weights = importance_weights(old, rollout, self._loss.importance_cap)
            self._note("importance_weight", weights, kept)
            losses = losses * weights
        if self._loss.entropy_coefficient:
            losses = losses - self._loss.entropy_coefficient * entropy
        if self._reference is not None:
            reference = to_device(self._reference[part.tokens], device)
            kl = kl_estimate(log_probs, reference, self._loss.kl_estimator)
            losses = losses + self._loss.kl_coefficient * kl
            self._note("kl", kl, kept)
        self._note("entropy", entropy, kept)
        self._note_ratios(terms, kept)
        self._note_difference(old if self._old_is_trainers else log_probs, part, kept)
        share = self._aggregate(losses, part)
        self._means.add(f"{self._role}/loss", share, 0.0)
        return share

    def _policy_loss(self, log_probs: torch.Tensor, part: MicroBatch, kept: _Kept) -> PolicyLoss:
        """The objective's loss of each token."""
        loss, device = self._loss, log_probs.device
        ratios = log_ratios(log_probs, to_device(self._old[part.tokens], device))
        advantages = to_device(self._advantages[part.tokens], device)
        low, high = loss.clip_range, loss.clip_range_high
        match loss.objective:
            case PolicyObjective.CLIPPED:
                return clipped_policy_loss(ratios, advantages, low, high, loss.dual_clip)
            case PolicyObjective.GSPO:
                whole = sequence_log_ratios(ratios, part.response_lengths, kept.mask)
                return clipped_policy_loss(whole, advantages, low, high)
            case PolicyObjective.CISPO:
                return cispo_loss(log_probs, ratios, advantages, low, high)

    def rows_by_signal(self) -> tuple[Rows, Rows]:
        """Rows that can have a gradient, and those that cannot: excluded, without a token that
        counts, or with advantages of zero on all of these.

        With an entropy bonus or a KL term every other row has one.
        """
        flags, counts = self._batch.own_tokens
        kept = (self._batch.kept & (counts > 0)).numpy()
        if not self._loss.entropy_coefficient and self._reference is None:
            row_of = np.repeat(np.arange(len(kept)), counts)
            sizes = self._advantages[flags].abs().numpy()
            moved = np.bincount(row_of, sizes, minlength=len(kept))
            kept = kept & (moved != 0)  # NaN is no silence: its gradient must show it
        return np.flatnonzero(kept), np.flatnonzero(~kept)

    def _kept(self, part: MicroBatch, device: torch.device) -> _Kept:
        mask = torch.repeat_interleave(self._batch.kept[part.rows], part.response_lengths)
        return _Kept(to_device(mask, device), float(mask.sum()))

    def _note(self, name: str, values: torch.Tensor, kept: _Kept) -> None:
        total = torch.where(kept.mask, values.detach().double(), 0.0).sum()
        self._means.add(f"{self._role}/{name}", total, kept.num_tokens)

    def _note_ratios(self, terms: PolicyLoss, kept: _Kept) -> None:
        """How far the policy has moved from the one that sampled."""
        self._note("clip_fraction", (terms.clipped | terms.dual_clipped).float(), kept)
        self._note("clip_fraction_low", (terms.clipped & (terms.ratios < 1)).float(), kept)
        self._note("clip_fraction_high", (terms.clipped & (terms.ratios > 1)).float(), kept)
        if kept.num_tokens:
            ratios = terms.ratios.detach()
            largest = torch.where(kept.mask, ratios, -torch.inf).max()
            smallest = torch.where(kept.mask, ratios, torch.inf).min()
            self._means.max(f"{self._role}/ratio_max", largest)
            self._means.max(f"{self._role}/inverse_ratio_max", 1 / smallest)

    def _note_difference(self, log_probs: torch.Tensor, part: MicroBatch, kept: _Kept) -> None:
        """How far the trainer's log-probabilities are from the generation engine's.

        Both belong to the weights that sampled: updates since then are no disagreement.
        """
        own, rollout = log_probs.detach(), to_device(self._rollout[part.tokens], log_probs.device)
        difference = (own - rollout).abs()
        self._note("log_prob_difference_mean", difference, kept)
        self._note("mismatch_kl", kl_estimate(rollout, own, KlEstimator.K3), kept)
        if len(difference):
            self._means.max(f"{self._role}/log_prob_difference_max", difference.max())

    def _aggregate(self, losses: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        padded, mask = pad(losses, part.response_lengths)
        mask &= to_device(self._batch.kept[part.rows, None], losses.device)
        return aggregate(padded, mask, self._loss.aggregation, self._batch.denominators)
