"""Costs that have to stay below a limit, beside a reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, checked_settings, is_number
from rlhf_flow.step.columns import (
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
    """What a constraint weighs: a number that grows while costs are above their limit and shrinks
    below it. It is learned once a step, on a logarithmic scale: log m += learning_rate x m x (mean
    cost - limit). It is the algorithm's own state, kept over steps and in checkpoints.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.

    Raises:
        FlowError: an initial value that has no logarithm.
    """

    scope: ClassVar[Scope] = Scope.BATCH

    costs: Scores
    """The field with the costs, such as cost_scores."""
    valid: Valid
    """The field that says which rows have one, such as cost_valid."""
    limit: float = 0.0
    """The mean cost that is allowed."""
    learning_rate: float = 0.1
    initial: float = 1.0
    """Before the first step."""
    maximum: float = 10.0
    """It grows no further: its growth is in proportion to itself."""
    multiplier: NewMultiplier = "multiplier"
    """The field for it, the same number in each row; its name in checkpoints as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        for name in ("learning_rate", "maximum"):
            value = getattr(self, name)
            check(owner, name, value, is_number(value), "a number of at least 0")
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
    """The field with the cost's advantages."""
    multiplier: Multiplier = "multiplier"
    """The field with the multiplier."""
    advantages: ChangedCredits = columns.ADVANTAGES
    """The field with the reward's, which it replaces."""


@checked_settings
@dataclass(frozen=True)
class BothValid(ColumnSettings):
    """Whether two things hold of a row, such as that it has a reward and a cost."""

    scope: ClassVar[Scope] = Scope.ROW

    first: Valid
    """A field that says which rows count, such as reward_valid."""
    second: Valid
    """Another one, such as cost_valid."""
    both: NewTruth = "valid"
    """The field that it writes."""
