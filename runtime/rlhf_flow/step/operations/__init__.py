"""Operations of `flow.compute`: their columns and settings.

Data only: the runtime maps each class to its function; a custom operation names its function.
"""

from __future__ import annotations

from rlhf_flow.step.operations.advantages import AboveBaseline, Gae, RewardsToGo, Whiten
from rlhf_flow.step.operations.constraints import BothValid, LagrangeMultiplier, PenalizedAdvantages
from rlhf_flow.step.operations.custom import Custom
from rlhf_flow.step.operations.groups import (
    AddTurnAdvantages,
    BestAgainstWorst,
    EnoughGroups,
    GroupAdvantages,
    GroupBaseline,
    MixedGroups,
    PairLines,
    PassAtK,
)
from rlhf_flow.step.operations.rewards import (
    AdaptiveKlCoefficient,
    AddTurnRewards,
    OverlongPenalty,
    PenalizedScores,
    TokenRewards,
    WeightedSum,
)
from rlhf_flow.step.operations.scope import Scope, widest

# A union of classes: a new operation needs an entry here and a function in
# rlhf_runtime.roles.operations.
Operation = (
    TokenRewards
    | AddTurnRewards
    | AddTurnAdvantages
    | Gae
    | Whiten
    | GroupAdvantages
    | RewardsToGo
    | AboveBaseline
    | AdaptiveKlCoefficient
    | PenalizedScores
    | OverlongPenalty
    | MixedGroups
    | EnoughGroups
    | BothValid
    | PassAtK
    | BestAgainstWorst
    | PairLines
    | LagrangeMultiplier
    | PenalizedAdvantages
    | WeightedSum
    | Custom
)

# Examples of operations, for messages about the source of a column.
BUILT_IN_OPERATIONS: tuple[Operation, ...] = (
    TokenRewards("reward_scores"),
    Gae(1.0, 1.0, values="critic_values"),
    Whiten("reward_valid"),
    GroupAdvantages("reward_scores", "reward_valid"),
    RewardsToGo(),
    MixedGroups("reward_scores", "reward_valid"),
    BestAgainstWorst("reward_scores", "reward_valid"),
    PairLines("reward_scores"),
    LagrangeMultiplier("cost_scores", "cost_valid"),
)

__all__ = [
    "AboveBaseline",
    "AdaptiveKlCoefficient",
    "AddTurnAdvantages",
    "AddTurnRewards",
    "BUILT_IN_OPERATIONS",
    "BestAgainstWorst",
    "BothValid",
    "Custom",
    "EnoughGroups",
    "Gae",
    "GroupAdvantages",
    "GroupBaseline",
    "LagrangeMultiplier",
    "MixedGroups",
    "Operation",
    "OverlongPenalty",
    "PairLines",
    "PassAtK",
    "PenalizedAdvantages",
    "PenalizedScores",
    "RewardsToGo",
    "Scope",
    "TokenRewards",
    "WeightedSum",
    "Whiten",
    "widest",
]
