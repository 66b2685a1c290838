"""Policy-gradient losses, token by token: PPO's clipped one, GSPO's and CISPO's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_runtime.devices import to_device
from rlhf_runtime.numerics.kl import MAX_LOG_RATIO


class TokenPolicyLoss(NamedTuple):
    """Loss and statistics of every token; nothing is masked or aggregated."""

    token_losses: Float[Tensor, "*tokens"]
    """To be minimised; carries the gradient."""
    ratios: Float[Tensor, "*tokens"]
    """Probability under the policy / probability when sampled; detached."""
    clipped: Bool[Tensor, "*tokens"]
    """Where the clip of the ratio is in force; but for CISPO no gradient flows there."""
    dual_clipped: Bool[Tensor, "*tokens"]
    """Where the dual clip is in force: no gradient flows."""


def log_ratios(
    log_probs: Float[Tensor, "*tokens"], old_log_probs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """How much likelier each sampled token has become, as a logarithm.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens.
        old_log_probs: those under the policy that sampled them; no gradient flows into them.
    """
    return log_probs - old_log_probs.detach()


def sequence_log_ratios(
    token_log_ratios: Float[Tensor, " tokens"],
    lengths: Int[Tensor, " rows"],
    kept: Bool[Tensor, " tokens"],
) -> Float[Tensor, " tokens"]:
    """The mean log-ratio of each response's kept tokens, for all of its tokens. Differentiable.

    Args:
        token_log_ratios: packed, row after row; whole responses.
        lengths: tokens of each row; they sum to `tokens`. Best on the host, wherever the rest is.
        kept: False on tokens that do not count.

    Source: GSPO (arXiv 2507.18071), equation 7.
    """
    rows = torch.arange(len(lengths), device=lengths.device)
    row_of = to_device(torch.repeat_interleave(rows, lengths), token_log_ratios.device)
    zeros = token_log_ratios.new_zeros(len(lengths))
    sums = zeros.index_add(0, row_of, torch.where(kept, token_log_ratios, 0.0))
    counts = zeros.index_add(0, row_of, kept.to(zeros.dtype))
    return (sums / counts.clamp(min=1))[row_of]


def clipped_policy_loss(
    log_ratios: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> TokenPolicyLoss:
    """PPO's pessimistic loss max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), w the ratio.

    With dual_clip c, tokens of negative advantage lose at most -A c. The log-ratio is clamped to
    +-20 so that the ratio stays finite. With the log-ratios of whole responses it is GSPO's loss.

    Args:
        log_ratios: of the policy to the one that sampled, as `log_ratios` or
            `sequence_log_ratios` gives them.
        advantages: one per token; no gradient flows into them.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far the ratio may rise above 1.
        dual_clip: bound for negative advantages, above 1; None for no bound.

    Returns:
        Token losses and statistics, for `aggregate` and the metrics.

    Source: PPO (arXiv 1707.06347), equation 7; dual clip: arXiv 1912.09729; asymmetric
    clip: DAPO (arXiv 2503.14476), section 3.1; whole responses: GSPO (arXiv 2507.18071),
    equation 5.
    """
    ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantages = advantages.detach()
    plain = -advantages * ratios
    bounded = -advantages * ratios.clamp(1 - clip_low, 1 + clip_high)
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
    """-clip(w, 1 - clip_low, 1 + clip_high) A log p, without gradient through the ratio w: every
    token has a gradient, that of a clipped one is smaller.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens; they carry the gradient.
        log_ratios: of the policy to the one that sampled.
        advantages: one per token; no gradient flows into them.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far the ratio may rise above 1.

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
    """How much likelier sampled tokens are under the training engine than under the generation
    engine that sampled them, at most `cap`: weights of the tokens' losses, without gradient.

    The two engines have the same weights, yet not the same kernels; in bfloat16 they differ enough
    to matter.

    Source: truncated importance sampling (Ionides, 2008).
    """
    difference = (trainer_log_probs - rollout_log_probs).detach()
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)


def passes_mismatch_threshold(
    trainer_log_probs: Float[Tensor, " tokens"],
    rollout_log_probs: Float[Tensor, " tokens"],
    lengths: Int[Tensor, " rows"],
    threshold: float,
) -> Bool[Tensor, " rows"]:
    """Which responses are, in the geometric mean of their tokens, at most `threshold` times as
    likely under one engine as under the other; empty ones are.

    Args:
        trainer_log_probs: packed, row after row, under the training engine.
        rollout_log_probs: those under the generation engine that sampled them.
        lengths: tokens of each row.
        threshold: above 1.

    Source: Liu et al., When speed kills stability (2025): sequence-level masked importance
    sampling, with the mean in place of the sum so that length does not matter.
    """
    row_of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sums = torch.zeros(len(lengths), dtype=torch.float64)
    sums.index_add_(0, row_of, (trainer_log_probs - rollout_log_probs).double())
    return (sums / lengths.clamp(min=1)).abs() <= math.log(threshold)
