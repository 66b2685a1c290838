"""Advantages without a critic: what GRPO, RLOO, OPO and REINFORCE++ differ in."""

from __future__ import annotations

from rlhf_api.spec.policy_loss import PolicyLossSettings
from rlhf_api.spec.presets import (
    GrpoSettings,
    OpoSettings,
    ReinforcePlusPlusSettings,
    RlooSettings,
)
from rlhf_flow.algorithms.policy_algorithm import KlPenalty
from rlhf_flow.operations import GroupAdvantages, GroupBaseline, Operation, RewardsToGo, Whiten


def estimator(
    settings: PolicyLossSettings,
    scores: str,
    valid: str,
    penalty: KlPenalty,
) -> tuple[Operation, ...]:
    """Operations from a score per response to the advantages of its tokens.

    Args:
        settings: of the algorithm.
        scores: the field with the scores.
        valid: the field that says which rows count.
        penalty: the KL penalty on rewards.
    """
    match settings:
        case ReinforcePlusPlusSettings(group_baseline=False):
            rewards = penalty.on_tokens(scores)
            return rewards, RewardsToGo(settings.gamma), Whiten(valid)
    penalties = penalty.on_scores(scores)
    return *penalties, *_compared(settings, penalties[-1].penalized if penalties else scores, valid)


def _compared(settings: PolicyLossSettings, scores: str, valid: str) -> tuple[Operation, ...]:
    """Samples of a prompt, compared with each other."""
    match settings:
        case GrpoSettings():
            return (GroupAdvantages(scores, valid, settings.normalize_by_std),)
        case RlooSettings():
            return (GroupAdvantages(scores, valid, False, GroupBaseline.LEAVE_ONE_OUT),)
        case OpoSettings():
            return (GroupAdvantages(scores, valid, False, GroupBaseline.LENGTH_WEIGHTED),)
        case ReinforcePlusPlusSettings(group_baseline=True):
            return (GroupAdvantages(scores, valid, False), Whiten(valid))
    raise AssertionError(f"{type(settings).__name__} has another step")
