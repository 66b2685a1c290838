"""Operations on scores: penalties, sums, and rewards per token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.errors import FlowError
from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, check_member, checked_settings, is_count, is_number
from rlhf_flow.step.column_settings import (
    ChangedCredits,
    ColumnInput,
    ColumnSettings,
    Credits,
    LogProbs,
    MaybeLogProbs,
    MaybeMultiplier,
    MaybeValid,
    NewMultiplier,
    NewRewards,
    NewScores,
    NewTruth,
    Reads,
    Scores,
)
from rlhf_flow.step.columns import Kind, is_name
from rlhf_flow.step.operations.scope import Scope


@checked_settings
@dataclass(frozen=True)
class AdaptiveKlCoefficient(ColumnSettings):
    """A coefficient of a KL penalty that keeps the KL near a target.

    The step gets the coefficient c that earlier steps have made. Then it becomes c x (1 + clip(kl /
    target - 1, -0.2, 0.2) x min(rows / horizon, 1)), where kl is the mean over all rows of the KL
    summed over a response. It is state of the algorithm, kept over steps and in checkpoints.

    Source: Ziegler et al. (arXiv 1909.08593), section 2.2.

    Raises:
        FlowError: an invalid setting.
    """

    scope: ClassVar[Scope] = Scope.BATCH
    always: ClassVar[tuple[str, ...]] = (columns.RESPONSE_TOKENS,)

    initial: float
    """Coefficient of the first step."""
    target: float
    """Desired mean KL of a complete response, in nats."""
    reference_log_probs: LogProbs
    """The column of the reference's log-probabilities."""
    kl_estimator: KlEstimator
    """Estimator of KL(policy, reference)."""
    horizon: int = 10000
    """Number of responses over which the coefficient changes by at most 20 percent."""
    policy_log_probs: LogProbs = columns.ROLLOUT_LOG_PROBS
    """The column of the policy's log-probabilities."""
    coefficient: NewMultiplier = "kl_coefficient"
    """The column that it writes, the same number in each row; also its name in checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        for name in ("initial", "target"):
            value = getattr(self, name)
            check(owner, name, value, is_number(value) and value > 0, "a number above 0")
        check(owner, "horizon", self.horizon, is_count(self.horizon), "a number of responses")
        _check_estimator(owner, self.kl_estimator)


@checked_settings
@dataclass(frozen=True)
class TokenRewards(ColumnSettings):
    """The score on the last response token minus klCoefficient x KL on every token.

    Raises:
        FlowError: a penalty without a reference, or an invalid setting.
    """

    scope: ClassVar[Scope] = Scope.ROW
    always: ClassVar[tuple[str, ...]] = (columns.RESPONSE_TOKENS,)

    scores: Scores
    """The column of scores, such as reward_scores."""
    kl_coefficient: float = 0.0
    """Weight of the penalty; 0 reads no log-probabilities."""
    kl_estimator: KlEstimator | None = None
    """Estimator of KL(policy, reference); required for a penalty."""
    policy_log_probs: LogProbs = columns.ROLLOUT_LOG_PROBS
    """The column of the policy's log-probabilities."""
    reference_log_probs: MaybeLogProbs = None
    """The column of the reference's log-probabilities; needed for a penalty."""
    rewards: NewRewards = columns.TOKEN_REWARDS
    """The column that it writes."""
    adaptive_coefficient: MaybeMultiplier = None
    """The column of AdaptiveKlCoefficient, whose number counts instead of kl_coefficient. None: the
    penalty's weight is constant."""

    def __post_init__(self) -> None:
        owner, coefficient = type(self).__name__, self.kl_coefficient
        is_weight = is_number(coefficient)
        check(owner, "kl_coefficient", coefficient, is_weight, "a number of at least 0")
        if self.kl_estimator is not None:
            _check_estimator(owner, self.kl_estimator)
        # Before the names of columns, whose check would refuse a missing reference less clearly.
        if coefficient > 0:
            check_kl_penalty(owner, self.reference_log_probs, self.kl_estimator)
        elif self.adaptive_coefficient is not None:
            check(owner, "kl_coefficient", coefficient, False, "a number above 0, the initial one")
        super().__post_init__()

    def unused(self) -> frozenset[str]:
        """The log-probabilities, without a penalty; the coefficient's column, if none is named."""
        if self.kl_coefficient == 0:
            return frozenset({"policy_log_probs", "reference_log_probs", "adaptive_coefficient"})
        return _without_coefficient(self.adaptive_coefficient)


@checked_settings
@dataclass(frozen=True)
class AddTurnRewards(ColumnSettings):
    """Token rewards plus those that an environment gives at the ends of turns.

    Raises:
        FlowError: an invalid setting.
    """

    scope: ClassVar[Scope] = Scope.ROW

    weight: float = 1.0
    """Factor of the rewards of turns."""
    turn_rewards: Credits = columns.TURN_REWARDS
    """The column of the rewards of turns."""
    rewards: ChangedCredits = columns.TOKEN_REWARDS
    """The column that it changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(type(self).__name__, "weight", self.weight, is_number(self.weight, -inf), "a number")


@checked_settings
@dataclass(frozen=True)
class PenalizedScores(ColumnSettings):
    """Each response's score minus klCoefficient x the KL summed over its tokens.

    Source: Ahmadian et al., Back to basics (RLOO, arXiv 2402.14740), equation 1.

    Raises:
        FlowError: no penalty, or one without a reference.
    """

    scope: ClassVar[Scope] = Scope.ROW
    always: ClassVar[tuple[str, ...]] = (columns.RESPONSE_TOKENS,)

    scores: Scores
    """The column of scores, such as reward_scores."""
    kl_coefficient: float
    """Weight of the penalty."""
    reference_log_probs: LogProbs
    """The column of the reference's log-probabilities."""
    kl_estimator: KlEstimator
    """Estimator of KL(policy, reference)."""
    policy_log_probs: LogProbs = columns.ROLLOUT_LOG_PROBS
    """The column of the policy's log-probabilities."""
    penalized: NewScores = "penalized_scores"
    """The column that it writes."""
    adaptive_coefficient: MaybeMultiplier = None
    """The column of AdaptiveKlCoefficient, whose number counts instead of kl_coefficient. None: the
    penalty's weight is constant."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, coefficient = type(self).__name__, self.kl_coefficient
        # Without a penalty the step can read the scores themselves.
        is_weight = is_number(coefficient) and coefficient > 0
        check(owner, "kl_coefficient", coefficient, is_weight, "a number above 0")
        _check_estimator(owner, self.kl_estimator)

    def unused(self) -> frozenset[str]:
        """The coefficient's column, if none is named."""
        return _without_coefficient(self.adaptive_coefficient)


@checked_settings
@dataclass(frozen=True)
class OverlongPenalty(ColumnSettings):
    """Scores minus a penalty that grows over the last tokens before the length limit.

    The length is that of the complete response, whatever a response mask says.

    Source: Yu et al., DAPO (arXiv 2503.14476), section 3.4.

    Raises:
        FlowError: an invalid setting.
    """

    scope: ClassVar[Scope] = Scope.ROW
    always: ClassVar[tuple[str, ...]] = (columns.RESPONSE_TOKENS,)

    scores: Scores
    """The column of scores, such as reward_scores."""
    longest: int
    """Length limit of responses, in tokens."""
    margin: int
    """Number of tokens before the limit over which the penalty grows."""
    penalty: float = 1.0
    """Penalty of a response at the limit."""
    shaped: NewScores = "shaped_scores"
    """The column that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        is_within = is_count(self.margin) and self.margin <= self.longest
        check(owner, "margin", self.margin, is_within, f"1 to longest, {self.longest}")
        check(owner, "penalty", self.penalty, is_number(self.penalty), "a number of at least 0")


@checked_settings
@dataclass(frozen=True)
class WeightedSum(ColumnSettings):
    """A weighted sum of scores, such as a verifier's and a reward model's; 0 in rows that do not
    count. Its mean and standard deviation are metrics.

    Raises:
        FlowError: no scores, or an invalid weight.
    """

    scope: ClassVar[Scope] = Scope.ROW

    terms: Mapping[str, float]
    """Columns of scores, and the factor of each."""
    scores: NewScores
    """The column of the sum, which it writes, such as total_scores."""
    valid: NewTruth
    """The column that it writes: true if the sum counts, such as total_valid."""
    counted: MaybeValid = None
    """The column that is true for the rows that count. None: all count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, terms = type(self).__name__, self.terms
        are_terms = isinstance(terms, Mapping) and bool(terms) and all(map(is_name, terms))
        check(owner, "terms", terms, are_terms, "columns of scores, at least one")
        for name, weight in terms.items():
            # A negative weight turns a score into a cost.
            is_weight = is_number(weight, minimum=-inf)
            check(owner, f"terms[{name!r}]", weight, is_weight, "a finite number")
        # A copy: the user's mapping may change after the trace. The class is frozen.
        object.__setattr__(self, "terms", dict(terms))

    def unused(self) -> frozenset[str]:
        """The column of rows that count, if none is named."""
        return frozenset() if self.counted is not None else frozenset({"counted"})

    def inputs(self) -> Iterator[ColumnInput]:
        """The columns that it reads."""
        # The base class finds settings that are a name, not those that map names.
        for name in self.terms:
            yield ColumnInput(name, Reads(frozenset({Kind.SCORES})), "terms")
        yield from super().inputs()


def _without_coefficient(column: str | None) -> frozenset[str]:
    return frozenset({"adaptive_coefficient"}) if column is None else frozenset()


def _check_estimator(owner: str, estimator: KlEstimator) -> None:
    """Refuse what is no estimator for rewards.

    Raises:
        FlowError: it is none.
    """
    check_member(owner, "kl_estimator", estimator, KlEstimator)
    # It corrects a gradient, and rewards have none.
    is_value = estimator is not KlEstimator.K3_CORRECTED
    check(owner, "kl_estimator", estimator, is_value, "KlEstimator.K1, K2 or K3 in rewards")


def check_kl_penalty(
    owner: str, reference_log_probs: str | None, estimator: KlEstimator | None
) -> None:
    """Refuse a KL penalty without the reference's log-probabilities or without an estimator.

    Raises:
        FlowError: one of them is missing.
    """
    if reference_log_probs is None:
        raise FlowError(
            f"{owner} has a KL penalty without a reference: got no reference_log_probs, allowed "
            "the column of a frozen role, such as reference_log_probs; name it"
        )
    # There is no default: built-in algorithms have different ones, which their settings decide.
    if estimator is None:
        members = ", ".join(f"KlEstimator.{member.name}" for member in KlEstimator)
        raise FlowError(
            f"{owner} has a KL penalty without an estimator: got no kl_estimator, allowed "
            f"{members}; name one"
        )
