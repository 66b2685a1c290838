"""Rewards of tokens to their advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, checked_settings, is_number
from rlhf_flow.step.columns import (
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
        FlowError: a setting that means nothing.
    """

    scope: ClassVar[Scope] = Scope.ROW

    gamma: float
    """Discount per token."""
    lam: float
    """Bias-variance trade-off."""
    values: Values
    """The field with a critic's values, such as critic_values."""
    rewards: Credits = columns.TOKEN_REWARDS
    """The field with every token's reward."""
    advantages: NewAdvantages = columns.ADVANTAGES
    """The field for them."""
    returns: NewReturns = columns.RETURNS
    """The field for the critic's targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            is_share = is_number(value) and value <= 1
            check(type(self).__name__, name, value, is_share, "a number from 0 to 1")


@checked_settings
@dataclass(frozen=True)
class RewardsToGo(ColumnSettings):
    """The discounted sum of the rewards of each token and those after it, as its advantage.

    Source: Hu et al., REINFORCE++ (arXiv 2501.03262), equation 7.

    Raises:
        FlowError: a setting that means nothing.
    """

    scope: ClassVar[Scope] = Scope.ROW

    gamma: float = 1.0
    """Discount per token."""
    rewards: Credits = columns.TOKEN_REWARDS
    """The field with every token's reward."""
    advantages: NewAdvantages = columns.ADVANTAGES
    """The field that it writes."""

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
    """The field that says which rows are, such as reward_valid."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The field that it replaces."""


@checked_settings
@dataclass(frozen=True)
class AboveBaseline(ColumnSettings):
    """Advantages minus a baseline of each response, such as the score of the greedy one; 0 where
    there is none.

    Source: Li et al., ReMax (arXiv 2310.10505), equation 5.
    """

    scope: ClassVar[Scope] = Scope.ROW

    baseline: Scores
    """The field with the baseline."""
    has_baseline: Valid
    """The field that says which rows have one."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The field that it replaces."""
