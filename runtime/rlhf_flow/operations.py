"""Pure numerics that `flow.compute` runs beside the models: their fields and settings.

Data only: the runtime maps each class to its function; a user's own operation names its function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow import fields
from rlhf_flow.arguments import checked_settings
from rlhf_flow.checks import check, check_member, is_count, is_number, suggest
from rlhf_flow.columns import (
    ChangedCredits,
    ColumnSettings,
    Credits,
    Input,
    LogProbs,
    MaybeLogProbs,
    Multiplier,
    NewAdvantages,
    NewMultiplier,
    NewPreference,
    NewReturns,
    NewRewards,
    NewScores,
    NewTruth,
    Output,
    Scores,
    Valid,
    Values,
)
from rlhf_flow.errors import FlowError
from rlhf_flow.fields import Kind

Parameter = bool | int | float | str


class Scope(Enum):
    """Which rows the result of one row depends on, from the fewest to all."""

    ROW = "row"
    """Itself alone."""
    GROUP = "group"
    """All rows of its prompt."""
    BATCH = "batch"
    """All rows: built-in operations sum over ranks, a function of the user's own gets them."""


_SCOPES = tuple(Scope)


def widest(scopes: Iterator[Scope]) -> Scope:
    """The scope of several operations together."""
    return max(scopes, key=_SCOPES.index)


@checked_settings
@dataclass(frozen=True)
class TokenRewards(ColumnSettings):
    """The score on the last response token minus klCoefficient x KL on every token.

    Raises:
        FlowError: a penalty without a reference, or a setting that means nothing.
    """

    scope: ClassVar[Scope] = Scope.ROW
    always: ClassVar[tuple[str, ...]] = (fields.RESPONSE_TOKENS,)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    kl_coefficient: float = 0.0
    """Weight of the penalty; 0 reads no log-probabilities."""
    kl_estimator: KlEstimator = KlEstimator.K1
    """Which estimator of KL(policy, reference)."""
    policy_log_probs: LogProbs = fields.ROLLOUT_LOG_PROBS
    """The field with the policy's log-probabilities."""
    reference_log_probs: MaybeLogProbs = None
    """The field with the reference's; needed for a penalty."""
    rewards: NewRewards = fields.TOKEN_REWARDS
    """The field that it writes."""

    def __post_init__(self) -> None:
        owner, coefficient = type(self).__name__, self.kl_coefficient
        is_weight = is_number(coefficient)
        check(owner, "kl_coefficient", coefficient, is_weight, "a number of at least 0")
        check_member(owner, "kl_estimator", self.kl_estimator, KlEstimator)
        if coefficient > 0:
            need_reference(owner, self.reference_log_probs)
        super().__post_init__()

    def unused(self) -> frozenset[str]:
        """Without a penalty no log-probabilities are read."""
        if self.kl_coefficient > 0:
            return frozenset()
        return frozenset({"policy_log_probs", "reference_log_probs"})


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
    rewards: Credits = fields.TOKEN_REWARDS
    """The field with every token's reward."""
    advantages: NewAdvantages = fields.ADVANTAGES
    """The field for them."""
    returns: NewReturns = fields.RETURNS
    """The field for the critic's targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            is_share = is_number(value) and value <= 1
            check(type(self).__name__, name, value, is_share, "a number from 0 to 1")


@checked_settings
@dataclass(frozen=True)
class Whiten(ColumnSettings):
    """Advantages shifted to mean 0 and scaled to variance 1 over the tokens of valid rows."""

    scope: ClassVar[Scope] = Scope.BATCH

    valid: Valid
    """The field that says which rows are, such as reward_valid."""
    advantages: ChangedCredits = fields.ADVANTAGES
    """The field that it replaces."""


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
    rewards: Credits = fields.TOKEN_REWARDS
    """The field with every token's reward."""
    advantages: NewAdvantages = fields.ADVANTAGES
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_share = is_number(self.gamma) and self.gamma <= 1
        check(type(self).__name__, "gamma", self.gamma, is_share, "a number from 0 to 1")


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
    advantages: ChangedCredits = fields.ADVANTAGES
    """The field that it replaces."""


@checked_settings
@dataclass(frozen=True)
class PenalizedScores(ColumnSettings):
    """Each response's score minus klCoefficient x the KL of its tokens.

    Source: Ahmadian et al., Back to basics (RLOO, arXiv 2402.14740), equation 1.

    Raises:
        FlowError: no penalty, or one without a reference.
    """

    scope: ClassVar[Scope] = Scope.ROW
    always: ClassVar[tuple[str, ...]] = (fields.RESPONSE_TOKENS,)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    kl_coefficient: float
    """Weight of the penalty."""
    reference_log_probs: LogProbs
    """The field with the reference's log-probabilities."""
    kl_estimator: KlEstimator = KlEstimator.K1
    """Which estimator of KL(policy, reference)."""
    policy_log_probs: LogProbs = fields.ROLLOUT_LOG_PROBS
    """The field with the policy's log-probabilities."""
    penalized: NewScores = "penalized_scores"
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, coefficient = type(self).__name__, self.kl_coefficient
        is_weight = is_number(coefficient) and coefficient > 0
        check(owner, "kl_coefficient", coefficient, is_weight, "a number above 0")
        check_member(owner, "kl_estimator", self.kl_estimator, KlEstimator)


@checked_settings
@dataclass(frozen=True)
class OverlongPenalty(ColumnSettings):
    """Scores minus a penalty that grows over the last tokens before the length limit.

    Source: Yu et al., DAPO (arXiv 2503.14476), section 3.4.

    Raises:
        FlowError: a setting that means nothing.
    """

    scope: ClassVar[Scope] = Scope.ROW
    always: ClassVar[tuple[str, ...]] = (fields.RESPONSE_TOKENS,)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    longest: int
    """Tokens of the longest response."""
    margin: int
    """Tokens before it over which the penalty grows."""
    penalty: float = 1.0
    """What a response of full length loses."""
    shaped: NewScores = "shaped_scores"
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        is_within = is_count(self.margin) and self.margin <= self.longest
        check(owner, "margin", self.margin, is_within, f"1 to longest, {self.longest}")
        check(owner, "penalty", self.penalty, is_number(self.penalty), "a number of at least 0")


@checked_settings
@dataclass(frozen=True)
class MixedGroups(ColumnSettings):
    """Which valid responses have samples of their prompt with another score beside them: the others
    teach nothing.

    Source: Yu et al., DAPO (arXiv 2503.14476), section 3.2.
    """

    scope: ClassVar[Scope] = Scope.GROUP

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    mixed: NewTruth = "mixed"
    """The field that it writes."""


@checked_settings
@dataclass(frozen=True)
class EnoughGroups(ColumnSettings):
    """Whether so many prompts have rows that count: a condition for flow.repeat.

    Source: Yu et al., DAPO (arXiv 2503.14476), algorithm 1.

    Raises:
        FlowError: a number that is none.
    """

    scope: ClassVar[Scope] = Scope.BATCH

    counted: Valid
    """The field that says which rows count, such as mixed."""
    num_groups: int
    """Prompts that are wanted."""
    enough: NewTruth = fields.ENOUGH
    """The field that it writes, the same in every row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number_of_groups = is_count(self.num_groups)
        allowed = "a number of at least 1"
        check(type(self).__name__, "num_groups", self.num_groups, is_number_of_groups, allowed)


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


@checked_settings
@dataclass(frozen=True)
class PassAtK(ColumnSettings):
    """Which valid responses pass, and how likely one of k to the same prompt does, as metrics.

    Source: Chen et al., Evaluating large language models trained on code (arXiv 2107.03374),
    equation 1.

    Raises:
        FlowError: no number, or one that is none.
    """

    scope: ClassVar[Scope] = Scope.GROUP

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    ks: tuple[int, ...] = (1,)
    """Numbers of responses."""
    threshold: float = 1.0
    """A response passes with a score of at least so much."""
    passed: NewTruth = "passed"
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        are_counts = bool(self.ks) and all(map(is_count, self.ks))
        check(type(self).__name__, "ks", self.ks, are_counts, "numbers of at least 1")


class GroupBaseline(Enum):
    """What a response is compared with."""

    MEAN = "mean"
    """The mean of its prompt's samples, its own among them (GRPO)."""
    LEAVE_ONE_OUT = "leave one out"
    """The mean of the others (RLOO)."""
    LENGTH_WEIGHTED = "length weighted"
    """The mean weighted by lengths (OPO)."""


@checked_settings
@dataclass(frozen=True)
class GroupAdvantages(ColumnSettings):
    """Scores relative to the valid samples of the same prompt, spread over the response's tokens.

    Source: DeepSeekMath, section 4.1; without the standard deviation Dr.GRPO; RLOO (arXiv
    2402.14740); OPO (arXiv 2505.23585).
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (fields.PROMPT_ID, fields.RESPONSE_TOKENS)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    normalize_by_std: bool = True
    """Whether they are divided by the group's standard deviation."""
    baseline: GroupBaseline = GroupBaseline.MEAN
    """What a response is compared with."""
    advantages: NewAdvantages = fields.ADVANTAGES
    """The field that it writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_member(type(self).__name__, "baseline", self.baseline, GroupBaseline)


@checked_settings
@dataclass(frozen=True)
class BestAgainstWorst(ColumnSettings):
    """Of each prompt's valid responses the one with the highest score is chosen (1), the one with
    the lowest rejected (-1), all others neither (0). Of equal ones the first counts; where all are
    equal, or fewer than two are valid, none is chosen.

    Source: RLHF Workflow (arXiv 2405.07863), section 3.
    """

    scope: ClassVar[Scope] = Scope.GROUP
    always: ClassVar[tuple[str, ...]] = (fields.PROMPT_ID,)

    scores: Scores
    """The field with the scores, such as reward_scores."""
    valid: Valid
    """The field that says which rows have one, such as reward_valid."""
    preference: NewPreference = fields.PREFERENCE
    """The field that it writes."""


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
    advantages: ChangedCredits = fields.ADVANTAGES
    """The field with the reward's, which it replaces."""


@checked_settings
@dataclass(frozen=True)
class Custom:
    """A function of the user's own: it gets the columns that it reads by name, of all rows that
    its scope names, and returns those that it writes.

    Raises:
        FlowError: the entry point has another form, a list of names is a single string, a name is
            none that a field may have, or a kind is none.
    """

    entrypoint: str
    """`package.module:function`."""
    reads: Sequence[str]
    """Fields that it needs."""
    writes: Sequence[str]
    """Fields that it makes; they may replace fields that it reads."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Keyword arguments of the function."""
    scope: Scope = Scope.GROUP
    """Which rows it has to see for the result of one."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """What fields that it writes hold. One that is not named holds what its name means in
    `rlhf_flow.fields`; where that says nothing it is taken for whatever reads it."""

    def __post_init__(self) -> None:
        module, colon, name = str(self.entrypoint).partition(":")
        if not (module and colon and name.isidentifier()):
            raise FlowError(
                f"an operation's entry point names no function: got {self.entrypoint!r}, "
                "allowed package.module:function; write it so"
            )
        for label, names in (("reads", self.reads), ("writes", self.writes)):
            self._check_names(label, names)
            object.__setattr__(self, label, tuple(names))
        object.__setattr__(self, "parameters", dict(self.parameters))
        owner = f"the operation {self.entrypoint}"
        check_member(owner, "scope", self.scope, Scope)
        for written, kind in self.kinds.items():
            check_member(owner, "kinds", kind, Kind)
            if written not in self.writes:
                raise FlowError(
                    f"{owner} says what a field holds that it does not write: got {written}, "
                    f"allowed {', '.join(self.writes)}; "
                    f"{suggest(written, self.writes, 'add it to writes, or remove it')}"
                )

    def inputs(self) -> Iterator[Input]:
        """The columns that it reads, of whatever kind."""
        return (Input(name, None) for name in self.reads)

    def outputs(self) -> Iterator[Output]:
        """The columns that it makes."""
        for name in self.writes:
            known = fields.field_of(name)
            yield Output(name, self.kinds.get(name, known.kind if known else None))

    def _check_names(self, label: str, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise FlowError(
                f"{label} of the operation {self.entrypoint} is a text: got {names!r}, "
                f"allowed a list of field names; write [{names!r}]"
            )
        if odd := [each for each in names if not fields.is_name(each)]:
            raise FlowError(
                f"{label} of the operation {self.entrypoint} has a name that no field may "
                f"have: got {odd[0]!r}, allowed {fields.ALLOWED_NAMES}; rename it"
            )


Operation = (
    TokenRewards
    | Gae
    | Whiten
    | GroupAdvantages
    | RewardsToGo
    | AboveBaseline
    | PenalizedScores
    | OverlongPenalty
    | MixedGroups
    | EnoughGroups
    | BothValid
    | PassAtK
    | BestAgainstWorst
    | LagrangeMultiplier
    | PenalizedAdvantages
    | Custom
)


def need_reference(what: str, reference_log_probs: str | None) -> None:
    """Refuse a KL penalty without the reference's log-probabilities.

    Raises:
        FlowError: none are named.
    """
    if reference_log_probs is None:
        raise FlowError(
            f"{what} has a KL penalty against nobody: got no reference_log_probs, allowed the "
            "field of a frozen role, such as reference_log_probs; name it"
        )


BUILT_IN_OPERATIONS: tuple[Operation, ...] = (
    TokenRewards("reward_scores"),
    Gae(1.0, 1.0, values="critic_values"),
    Whiten("reward_valid"),
    GroupAdvantages("reward_scores", "reward_valid"),
    RewardsToGo(),
    MixedGroups("reward_scores", "reward_valid"),
    BestAgainstWorst("reward_scores", "reward_valid"),
    LagrangeMultiplier("cost_scores", "cost_valid"),
)
"""For messages that say where a field comes from."""
