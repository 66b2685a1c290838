"""Operations for costs with an upper limit, next to a reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, checked_settings, is_number
from rlhf_flow.step.column_settings import (
    ChangedCredits,
    ColumnSettings,
    Credits,
    Multiplier,
    NewMultiplier,
    NewTruth,
    Scores,
    Valid,
)
from rlhf_flow.step.operations.scope import Scope


@checked_settings
@dataclass(frozen=True)
class LagrangeMultiplier(ColumnSettings):
    """Weight m of a constraint: it grows while costs are above their limit and shrinks below it.

    It is updated once a step, on a logarithmic scale: log m += learning_rate x m x (mean cost -
    limit). It is state of the algorithm, kept over steps and in checkpoints.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.

    Raises:
        FlowError: an initial value that has no logarithm.
    """

    scope: ClassVar[Scope] = Scope.BATCH

    costs: Scores
    """The column of costs, such as cost_scores."""
    valid: Valid
    """The column that is true for the rows with a cost, such as cost_valid."""
    limit: float = 0.0
    """Allowed mean cost."""
    learning_rate: float = 0.1
    initial: float = 1.0
    """Value before the first step."""
    # m grows in proportion to itself: without a bound it diverges while a limit cannot be met.
    maximum: float = 10.0
    """Upper bound of m."""
    multiplier: NewMultiplier = "multiplier"
    """The column that it writes, the same number in each row; also its name in checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        for name in ("learning_rate", "maximum"):
            value = getattr(self, name)
            check(owner, name, value, is_number(value), "a number of at least 0")
        # 0 has no logarithm.
        is_between = is_number(self.initial) and 0 < self.initial <= self.maximum
        allowed = f"a number above 0 and at most maximum={self.maximum!r}"
        check(owner, "initial", self.initial, is_between, allowed)


@checked_settings
@dataclass(frozen=True)
class PenalizedAdvantages(ColumnSettings):
    """(advantages of the reward - m x those of the cost) / (1 + m), with the multiplier m.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.
    """

    scope: ClassVar[Scope] = Scope.ROW

    costs: Credits
    """The column of the cost's advantages."""
    multiplier: Multiplier = "multiplier"
    """The column of the multiplier."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The column of the reward's advantages, which it replaces."""


@checked_settings
@dataclass(frozen=True)
class BothValid(ColumnSettings):
    """The logical and of two columns: rows with both a reward and a cost, say."""

    scope: ClassVar[Scope] = Scope.ROW

    first: Valid
    """A column of truths, such as reward_valid."""
    second: Valid
    """Another one, such as cost_valid."""
    both: NewTruth = "valid"
    """The column that it writes."""
