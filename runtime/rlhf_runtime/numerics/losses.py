"""Losses per token, and their aggregation into a mini-batch's loss.

Every aggregation divides by counts of the complete mini-batch, computed before its first
micro-batch runs. Each micro-batch contributes a share. The shares of all micro-batches on all ranks
sum to the mini-batch's loss, which therefore does not depend on the micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation
from rlhf_runtime.devices import to_device

# Bound of |log ratio| before exponentiation; e^20 still squares within float32.
MAX_LOG_RATIO = 20.0


def kl_estimate(
    log_probs: Float[Tensor, "*tokens"],
    reference_log_probs: Float[Tensor, "*tokens"],
    estimator: KlEstimator,
) -> Float[Tensor, "*tokens"]:
    """Estimate KL(policy, reference) per token from samples of the policy. Differentiable.

    With d = log_probs - reference_log_probs: k1 = d (unbiased, may be negative), k2 = d^2 / 2
    (biased, never negative), k3 = exp(-d) + d - 1 (unbiased, never negative). In k3 d is clamped to
    +-20 against overflow. K3_CORRECTED is k3; see `corrected_kl`.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens, any shape.
        reference_log_probs: the reference's, same shape.
        estimator: the estimator.

    Returns:
        One estimate per token, in nats. Nothing is masked.

    Source: Schulman, Approximating KL Divergence (2020); k3 in GRPO (arXiv 2402.03300), equation 4.
    """
    difference = log_probs - reference_log_probs
    if estimator is KlEstimator.K1:
        return difference
    if estimator is KlEstimator.K2:
        return difference.square() / 2
    bounded = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    # expm1 keeps the digits that exp(-d) - 1 loses for small d.
    return torch.expm1(-bounded) + bounded


def corrected_kl(
    estimates: Float[Tensor, "*tokens"], ratios: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """Weight estimates by the ratio of each token's probability, so that their mean gradient is
    that of KL(policy, reference).

    The mean over samples has a gradient of its own, as the samples depend on the policy. The ratio
    has that gradient, and it also corrects for samples of an earlier policy.

    Args:
        estimates: by k3.
        ratios: log-ratios of the policy to the one that sampled, as `log_ratios` computes them;
            clamped to +-20 against overflow.
    """
    return ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * estimates


class TokenPolicyLoss(NamedTuple):
    """Loss and statistics of every token; nothing is masked or aggregated."""

    token_losses: Float[Tensor, "*tokens"]
    """To be minimized; carries the gradient."""
    ratios: Float[Tensor, "*tokens"]
    """Probability under the policy / probability when sampled; detached."""
    clipped: Bool[Tensor, "*tokens"]
    """True where the ratio is clipped; except in CISPO no gradient flows there."""
    dual_clipped: Bool[Tensor, "*tokens"]
    """True where the dual clip applies; no gradient flows there."""


def log_ratios(
    log_probs: Float[Tensor, "*tokens"], old_log_probs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """Compute the log-ratio of each sampled token, policy to the policy that sampled.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens.
        old_log_probs: log-probabilities under the policy that sampled; detached.
    """
    return log_probs - old_log_probs.detach()


def sequence_log_ratios(
    token_log_ratios: Float[Tensor, " tokens"],
    lengths: Int[Tensor, " rows"],
    kept: Bool[Tensor, " tokens"],
) -> Float[Tensor, " tokens"]:
    """Average the log-ratios of each response's kept tokens, for all of its tokens. Differentiable.

    Args:
        token_log_ratios: packed, row after row; complete responses.
        lengths: tokens of each row; they sum to `tokens`. Pass them on the host.
        kept: False on tokens that do not count.

    Source: GSPO (arXiv 2507.18071), equation 7.
    """
    rows = torch.arange(len(lengths), device=lengths.device)
    row_of = to_device(torch.repeat_interleave(rows, lengths), token_log_ratios.device)
    zeros = token_log_ratios.new_zeros(len(lengths))
    sums = zeros.index_add(0, row_of, torch.where(kept, token_log_ratios, 0.0))
    counts = zeros.index_add(0, row_of, kept.to(zeros.dtype))
    # A row without kept tokens has sum 0; the clamp avoids 0 / 0.
    return (sums / counts.clamp(min=1))[row_of]


def clipped_policy_loss(
    log_ratios: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> TokenPolicyLoss:
    """Compute PPO's loss max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), w the ratio.

    With dual_clip c the loss of tokens with negative advantage is at most -A c. The log-ratio is
    clamped to +-20, which keeps the ratio finite. With sequence log-ratios it is GSPO's loss.

    Args:
        log_ratios: from `log_ratios` or `sequence_log_ratios`.
        advantages: one per token; detached.
        clip_low: maximum of 1 - ratio.
        clip_high: maximum of ratio - 1.
        dual_clip: bound for negative advantages, above 1; None for no bound.

    Returns:
        Token losses and statistics, for `aggregate` and the metrics.

    Source: PPO (arXiv 1707.06347), equation 7; dual clip: arXiv 1912.09729; asymmetric
    clip: DAPO (arXiv 2503.14476), section 3.1; sequence ratios: GSPO (arXiv 2507.18071),
    equation 5.
    """
    ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantages = advantages.detach()
    plain = -advantages * ratios
    bounded = -advantages * ratios.clamp(1 - clip_low, 1 + clip_high)
    # The larger loss of both: clipping never rewards a large step.
    losses = torch.maximum(plain, bounded)
    clipped = bounded > plain
    dual_clipped = torch.zeros_like(clipped)
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        dual_clipped = (advantages < 0) & (losses > ceiling)
        losses = torch.where(dual_clipped, ceiling, losses)
    return TokenPolicyLoss(losses, ratios.detach(), clipped, dual_clipped)


def cispo_loss(
    log_probs: Float[Tensor, "*tokens"],
    log_ratios: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    clip_low: float,
    clip_high: float,
) -> TokenPolicyLoss:
    """Compute -clip(w, 1 - clip_low, 1 + clip_high) A log p, with the ratio w detached.

    Every token has a gradient; that of a clipped token is scaled down.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens; they carry the gradient.
        log_ratios: from `log_ratios`.
        advantages: one per token; detached.
        clip_low: maximum of 1 - ratio.
        clip_high: maximum of ratio - 1.

    Source: MiniMax-M1 (arXiv 2506.13585), equation 4.
    """
    ratios = log_ratios.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded = ratios.clamp(1 - clip_low, 1 + clip_high)
    losses = -bounded * advantages.detach() * log_probs
    clipped = bounded != ratios
    return TokenPolicyLoss(losses, ratios, clipped, torch.zeros_like(clipped))


def importance_weights(
    trainer_log_probs: Float[Tensor, "*tokens"],
    rollout_log_probs: Float[Tensor, "*tokens"],
    cap: float,
) -> Float[Tensor, "*tokens"]:
    """Compute the ratio of sampled tokens' probabilities, training engine to generation engine,
    truncated at `cap`: weights of the tokens' losses, detached.

    Source: truncated importance sampling (Ionides, 2008).
    """
    # The engines have equal weights but different kernels; in bfloat16 the difference matters.
    difference = (trainer_log_probs - rollout_log_probs).detach()
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)


def passes_mismatch_threshold(
    trainer_log_probs: Float[Tensor, " tokens"],
    rollout_log_probs: Float[Tensor, " tokens"],
    lengths: Int[Tensor, " rows"],
    threshold: float,
) -> Bool[Tensor, " rows"]:
    """Mark responses that both engines rate as about equally likely; True for empty ones.

    The geometric mean of the tokens' probability ratios, and its inverse, must be at most
    `threshold`.

    Args:
        trainer_log_probs: log-probabilities under the training engine, packed, row after row.
        rollout_log_probs: log-probabilities under the generation engine that sampled.
        lengths: tokens of each row.
        threshold: above 1.

    Source: Liu et al., When speed kills stability (2025): sequence-level masked importance
    sampling, with the mean in place of the sum, which makes it independent of length.
    """
    row_of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sums = torch.zeros(len(lengths), dtype=torch.float64)
    sums.index_add_(0, row_of, (trainer_log_probs - rollout_log_probs).double())
    # An empty response has sum 0 and passes.
    return (sums / lengths.clamp(min=1)).abs() <= math.log(threshold)


class TokenValueLoss(NamedTuple):
    """Loss and statistics of every token; nothing is masked or aggregated."""

    token_losses: Float[Tensor, "*tokens"]
    """To be minimized; carries the gradient."""
    clipped: Bool[Tensor, "*tokens"]
    """True where the value is clipped; no gradient flows there."""


def clipped_value_loss(
    values: Float[Tensor, "*tokens"],
    old_values: Float[Tensor, "*tokens"],
    returns: Float[Tensor, "*tokens"],
    clip_range: float | None = None,
) -> TokenValueLoss:
    """Compute half the squared error of the value or the clipped value, whichever is larger:
    0.5 max((v - R)^2, (clip(v, v_old - clip_range, v_old + clip_range) - R)^2).

    Args:
        values: the critic's values.
        old_values: its values when the returns were computed; detached.
        returns: targets; detached.
        clip_range: maximum distance of a value from the old one; None for no clip.

    Returns:
        Token losses and the clipped tokens.

    Source: the clip of PPO's reference implementation (openai/baselines, ppo2).
    """
    returns = returns.detach()
    plain = (values - returns).square()
    if clip_range is None:
        return TokenValueLoss(0.5 * plain, torch.zeros_like(plain, dtype=torch.bool))
    old_values = old_values.detach()
    moved = old_values + (values - old_values).clamp(-clip_range, clip_range)
    bounded = (moved - returns).square()
    return TokenValueLoss(0.5 * torch.maximum(plain, bounded), bounded > plain)


@dataclass(frozen=True)
class Denominators:
    """Counts of a complete mini-batch, over all its micro-batches and ranks."""

    num_tokens: int
    """Kept tokens."""
    num_sequences: int
    """Sequences with at least one kept token."""
    fixed_length: int | None = None
    """Divisor of SEQUENCE_MEAN_FIXED_LENGTH: the maximum response length in tokens."""


def aggregate(
    token_losses: Float[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
    mode: LossAggregation,
    denominators: Denominators,
) -> Float[Tensor, ""]:
    """Return this micro-batch's share of the mini-batch's loss. Differentiable.

    A sequence must lie in one micro-batch entirely. Where gradients are averaged over data-parallel
    ranks, the caller multiplies each share by the number of these ranks.

    Args:
        token_losses: one loss per token; masked tokens do not count, even if they are NaN.
        mask: True on kept tokens.
        mode: kind of average over tokens and sequences.
        denominators: counts of the complete mini-batch.

    Returns:
        A scalar, 0 if no token is kept.

    Raises:
        ValueError: the mode needs a fixed length and there is none.

    Source: DAPO (arXiv 2503.14476), section 3.3; Dr.GRPO (arXiv 2503.20783), section 3.2.
    """
    # Selected, not multiplied by the mask: 0 * NaN would be NaN.
    sums = torch.where(mask, token_losses, torch.zeros_like(token_losses)).sum(dim=1)
    num_sequences = max(1, denominators.num_sequences)
    match mode:
        case LossAggregation.TOKEN_MEAN:
            return sums.sum() / max(1, denominators.num_tokens)
        case LossAggregation.SEQUENCE_MEAN_TOKEN_SUM:
            return sums.sum() / num_sequences
        case LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN:
            # A row without kept tokens has sum 0; the clamp avoids 0 / 0.
            return (sums / mask.sum(dim=1).clamp(min=1)).sum() / num_sequences
        case LossAggregation.SEQUENCE_MEAN_FIXED_LENGTH:
            if denominators.fixed_length is None:
                raise ValueError(
                    f"aggregation {mode.value} without its length: got fixed_length None; pass the "
                    "maximum response length to Denominators"
                )
            return sums.sum() / (num_sequences * denominators.fixed_length)
