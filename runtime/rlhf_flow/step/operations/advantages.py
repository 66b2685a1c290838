"""Operations from token rewards to advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, checked_settings, is_number
from rlhf_flow.step.column_settings import (
    ChangedCredits,
    ColumnSettings,
    Credits,
    NewAdvantages,
    NewReturns,
    Scores,
    Valid,
    Values,
)
from rlhf_flow.step.operations.scope import Scope


@checked_settings
@dataclass(frozen=True)
class Gae(ColumnSettings):
    """Generalized advantage estimation; returns = advantages + values. It does not whiten.

    Source: Schulman et al., High-dimensional continuous control using GAE, section 3.

    Raises:
        FlowError: an invalid setting.
    """

    scope: ClassVar[Scope] = Scope.ROW

    gamma: float
    """Discount per token."""
    lam: float
    """Bias-variance trade-off."""
    values: Values
    """The column of a critic's values, such as critic_values."""
    rewards: Credits = columns.TOKEN_REWARDS
    """The column of token rewards."""
    advantages: NewAdvantages = columns.ADVANTAGES
    """The column that it writes."""
    returns: NewReturns = columns.RETURNS
    """The column of the critic's targets, which it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            is_share = is_number(value) and value <= 1
            check(type(self).__name__, name, value, is_share, "a number from 0 to 1")


@checked_settings
@dataclass(frozen=True)
class RewardsToGo(ColumnSettings):
    """Each token's advantage is the discounted sum of its reward and all later ones.

    Source: Hu et al., REINFORCE++ (arXiv 2501.03262), equation 7.

    Raises:
        FlowError: an invalid setting.
    """

    scope: ClassVar[Scope] = Scope.ROW

    gamma: float = 1.0
    """Discount per token."""
    rewards: Credits = columns.TOKEN_REWARDS
    """The column of token rewards."""
    advantages: NewAdvantages = columns.ADVANTAGES
    """The column that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_share = is_number(self.gamma) and self.gamma <= 1
        check(type(self).__name__, "gamma", self.gamma, is_share, "a number from 0 to 1")


@checked_settings
@dataclass(frozen=True)
class Whiten(ColumnSettings):
    """Advantages shifted to mean 0 and scaled to variance 1 over the tokens of valid rows."""

    scope: ClassVar[Scope] = Scope.BATCH

    valid: Valid
    """The column that is true for valid rows, such as reward_valid."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The column that it replaces."""


@checked_settings
@dataclass(frozen=True)
class AboveBaseline(ColumnSettings):
    """Advantages minus a baseline per response, such as the score of the greedy one; 0 for rows
    without a baseline.

    Source: Li et al., ReMax (arXiv 2310.10505), equation 5.
    """

    scope: ClassVar[Scope] = Scope.ROW

    baseline: Scores
    """The column of baselines."""
    has_baseline: Valid
    """The column that is true for the rows with a baseline."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The column that it replaces."""
