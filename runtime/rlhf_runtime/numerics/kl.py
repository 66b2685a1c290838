"""Estimators of the divergence between policy and reference from the sampled tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rlhf_api.spec.policy_loss import KlEstimator

MAX_LOG_RATIO = 20.0
"""Bound of |log ratio| before exponentiation; e^20 still squares within float32."""


def kl_estimate(
    log_probs: Float[Tensor, "*tokens"],
    reference_log_probs: Float[Tensor, "*tokens"],
    estimator: KlEstimator,
) -> Float[Tensor, "*tokens"]:
    """Estimate KL(policy, reference) per token from samples of the policy. Differentiable.

    With d = log_probs - reference_log_probs: k1 = d (unbiased, may be negative), k2 = d^2 / 2
    (biased, never negative), k3 = exp(-d) + d - 1 (unbiased, never negative). In k3 d is clamped to
    +-20 against overflow.

    Args:
        log_probs: the policy's log-probabilities of the sampled tokens, any shape.
        reference_log_probs: the reference's, same shape.
        estimator: which estimator.

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
    return torch.expm1(-bounded) + bounded
