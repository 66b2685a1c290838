"""What is computed and where: algorithms, the graph traced from them, and its plan.

A user's own algorithm needs the names below and `rlhf_flow.operations`.
"""

from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation, PolicyObjective
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.batches import BatchValue
from rlhf_flow.fields import Kind
from rlhf_flow.flow import Flow
from rlhf_flow.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, ValueLoss
from rlhf_flow.operations import Scope
from rlhf_flow.roles import LanguageModel, RewardSource, Roles, ScalarModel

__all__ = [
    "Algorithm",
    "BatchValue",
    "BradleyTerry",
    "ClippedLoss",
    "CrossEntropy",
    "Dpo",
    "Flow",
    "Kind",
    "KlEstimator",
    "LanguageModel",
    "LossAggregation",
    "PolicyObjective",
    "RewardSource",
    "Roles",
    "ScalarModel",
    "Scope",
    "ValueLoss",
]
