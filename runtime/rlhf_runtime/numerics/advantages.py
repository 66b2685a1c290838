"""Advantages from rewards: generalized advantage estimation, discounted returns, cost penalties."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from rlhf_runtime.numerics.moments import Reduce, moments, no_reduce


def generalized_advantages(
    rewards: Float[Tensor, "rows time"],
    values: Float[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
    gamma: float,
    lam: float,
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """Compute advantages and returns of every response token, without whitening.

    delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lam A_next, where *next* is the
    row's next kept token. Masked tokens (tool output, padding) are skipped without discount. After
    the last kept token value and advantage are 0.

    Args:
        rewards: reward of every token; masked tokens do not count.
        values: the critic's value before every token.
        mask: True on response tokens.
        gamma: discount per kept token.
        lam: trade-off between bias (0) and variance (1).

    Returns:
        Advantages and returns (advantage + value), both detached and 0 on masked tokens.

    Source: Schulman et al., GAE (arXiv 1506.02438), equations 11 to 16.
    """
    rewards, values = rewards.detach(), values.detach()
    zero = values.new_zeros(())
    # A masked token has delta 0 and decay 1: it passes the advantage on unchanged.
    deltas = torch.where(mask, rewards + gamma * _next_kept(values, mask) - values, zero)
    decays = torch.where(mask, values.new_tensor(gamma * lam), values.new_ones(()))
    advantages = torch.where(mask, _discounted_sums(deltas, decays), zero)
    return advantages, torch.where(mask, advantages + values, zero)


def rewards_to_go(
    rewards: Float[Tensor, "rows time"], mask: Bool[Tensor, "rows time"], gamma: float
) -> Float[Tensor, "rows time"]:
    """Sum the discounted rewards from each response token on: G_t = r_t + gamma G_next, where
    *next* is the row's next kept token.

    Args:
        rewards: reward of every token; masked tokens do not count.
        mask: True on response tokens.
        gamma: discount per kept token.

    Returns:
        Sums, detached and 0 on masked tokens.

    Source: REINFORCE++ (arXiv 2501.03262), equation 7.
    """
    # A masked token has reward 0 and decay 1: it passes the sum on unchanged.
    kept = torch.where(mask, rewards.detach(), 0.0)
    decays = torch.where(mask, kept.new_tensor(gamma), kept.new_ones(()))
    return torch.where(mask, _discounted_sums(kept, decays), 0.0)


def _next_kept(
    values: Float[Tensor, "rows time"], mask: Bool[Tensor, "rows time"]
) -> Float[Tensor, "rows time"]:
    """Return the value at the next kept token after each position, 0 where there is none."""
    num_rows, num_steps = mask.shape
    positions = torch.arange(num_steps, device=mask.device)
    # Position num_steps stands for no kept token; its value is the appended 0.
    kept: Int[Tensor, "rows time"] = torch.where(mask, positions, num_steps)
    # First kept position at or after each position.
    nearest = kept.flip(1).cummin(dim=1).values.flip(1)
    following = torch.cat([nearest[:, 1:], nearest.new_full((num_rows, 1), num_steps)], dim=1)
    closed = torch.cat([values, values.new_zeros(num_rows, 1)], dim=1)
    return closed.gather(1, following[:, :num_steps])


def _discounted_sums(
    terms: Float[Tensor, "rows time"], decays: Float[Tensor, "rows time"]
) -> Float[Tensor, "rows time"]:
    """Return s_t = terms_t + decays_t s_{t+1}."""
    # Time first, so that each step is one fused operation over contiguous rows.
    sums = terms.t().contiguous()
    rows, row_decays = sums.unbind(0), decays.t().contiguous().unbind(0)
    for step in range(len(rows) - 2, -1, -1):
        rows[step].addcmul_(row_decays[step], rows[step + 1])
    return sums.t()


def learned_multiplier(
    multiplier: Float64[Tensor, ""],
    costs: Float[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    limit: float,
    learning_rate: float,
    maximum: float,
    reduce: Reduce = no_reduce,
) -> Float64[Tensor, ""]:
    """Update a Lagrange multiplier m by log m += learning_rate m (mean cost - limit).

    Args:
        multiplier: the current value, above 0.
        costs: of this rank's responses.
        valid: True where there is a cost; without any on all ranks m is unchanged.
        limit: the maximum mean cost.
        learning_rate: step size of the update.
        maximum: upper bound of m.
        reduce: sums over ranks.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.
    """
    cost = moments(costs, valid, reduce)
    if cost.num_elements == 0:
        return multiplier
    # The gradient is taken in log m, so that m stays positive.
    step = learning_rate * multiplier * (cost.mean - limit)
    return (multiplier * step.exp()).clamp(max=maximum)


def penalized_advantages(
    advantages: Float[Tensor, "*tokens"],
    costs: Float[Tensor, "*tokens"],
    multiplier: Float[Tensor, "*#tokens"],
) -> Float[Tensor, "*tokens"]:
    """Return (advantages - m costs) / (1 + m), m the multiplier."""
    # The divisor keeps the scale of advantages, and so the learning rate, independent of m.
    return (advantages - multiplier * costs) / (1 + multiplier)
