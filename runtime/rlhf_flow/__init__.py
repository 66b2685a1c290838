"""The public names that a user's own algorithm imports: roles, the flow, losses and operations."""

from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation, PolicyObjective
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import Kind
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, ValueLoss
from rlhf_flow.step.operations import (
    AboveBaseline,
    AdaptiveKlCoefficient,
    BestAgainstWorst,
    BothValid,
    Custom,
    EnoughGroups,
    Gae,
    GroupAdvantages,
    GroupBaseline,
    LagrangeMultiplier,
    MixedGroups,
    OverlongPenalty,
    PairLines,
    PassAtK,
    PenalizedAdvantages,
    PenalizedScores,
    RewardsToGo,
    Scope,
    TokenRewards,
    WeightedSum,
    Whiten,
)
from rlhf_flow.step.roles import LanguageModel, RewardSource, Roles, ScalarModel

__all__ = [
    "AboveBaseline",
    "AdaptiveKlCoefficient",
    "Algorithm",
    "BatchValue",
    "BestAgainstWorst",
    "BothValid",
    "BradleyTerry",
    "ClippedLoss",
    "CrossEntropy",
    "Custom",
    "Dpo",
    "EnoughGroups",
    "Flow",
    "Gae",
    "GroupAdvantages",
    "GroupBaseline",
    "Kind",
    "KlEstimator",
    "LagrangeMultiplier",
    "LanguageModel",
    "LossAggregation",
    "MixedGroups",
    "OverlongPenalty",
    "PairLines",
    "PassAtK",
    "PenalizedAdvantages",
    "PenalizedScores",
    "PolicyObjective",
    "RewardSource",
    "RewardsToGo",
    "Roles",
    "ScalarModel",
    "Scope",
    "TokenRewards",
    "ValueLoss",
    "WeightedSum",
    "Whiten",
]
