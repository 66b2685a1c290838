"""The clipped policy-gradient loss, token by token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_runtime.numerics.kl import MAX_LOG_RATIO


class PolicyLoss(NamedTuple):
    """Loss and statistics of every token; nothing is masked or aggregated."""

    token_losses: Float[Tensor, "*tokens"]
    """To be minimised; carries the gradient."""
    ratios: Float[Tensor, "*tokens"]
    """Probability under the policy / probability when sampled; detached."""
    clipped: Bool[Tensor, "*tokens"]
    """Where the clip of the ratio is in force: no gradient flows."""
    dual_clipped: Bool[Tensor, "*tokens"]
    """Where the dual clip is in force: no gradient flows."""


def clipped_policy_loss(
    log_probs: Float[Tensor, "*tokens"],
    old_log_probs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """PPO's pessimistic loss max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), w the ratio.

    With dual_clip c, tokens of negative advantage lose at most -A c. The log-ratio is clamped to
    +-20 so that the ratio stays finite.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens.
        old_log_probs: those under the policy that sampled them; no gradient flows into them.
        advantages: one per token; no gradient flows into them.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far the ratio may rise above 1.
        dual_clip: bound for negative advantages, above 1; None for no bound.

    Returns:
        Token losses and statistics, for `aggregate` and the metrics.

    Source: PPO (arXiv 1707.06347), equation 7; dual clip: arXiv 1912.09729; asymmetric
    clip: DAPO (arXiv 2503.14476), section 3.1.
    """
    log_ratios = (log_probs - old_log_probs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratios = log_ratios.exp()
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
    return PolicyLoss(losses, ratios.detach(), clipped, dual_clipped)


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
    log_ratios = (trainer_log_probs - rollout_log_probs).detach()
    return log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
