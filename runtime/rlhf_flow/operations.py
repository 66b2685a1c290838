"""Pure numerics that `flow.compute` runs beside the models: their fields and settings.

Data only: the runtime maps each class to its function; a user's own operation names its function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rlhf_api.spec.algorithm import KlEstimator
from rlhf_flow import fields
from rlhf_flow.checks import check, is_number
from rlhf_flow.errors import FlowError

Parameter = bool | int | float | str


class Scope(Enum):
    """What an operation of the user's own has to see for the result of one row."""

    GROUP = "group"
    """All rows of its prompt."""
    BATCH = "batch"
    """All rows."""


@dataclass(frozen=True)
class TokenRewards:
    """The score on the last response token minus klCoefficient x KL on every token.

    Raises:
        FlowError: a penalty without a reference.
    """

    scores: str
    """The field with the scores, such as reward_scores."""
    kl_coefficient: float = 0.0
    """Weight of the penalty; 0 reads no log-probabilities."""
    kl_estimator: KlEstimator = KlEstimator.K1
    """Which estimator of KL(policy, reference)."""
    policy_log_probs: str = fields.ROLLOUT_LOG_PROBS
    """The field with the policy's log-probabilities."""
    reference_log_probs: str | None = None
    """The field with the reference's; needed for a penalty."""
    rewards: str = fields.TOKEN_REWARDS
    """The field that it writes."""

    def __post_init__(self) -> None:
        if self.kl_coefficient > 0:
            need_reference("TokenRewards", self.reference_log_probs)

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        always = (self.scores, fields.RESPONSE_TOKENS)
        if self.kl_coefficient == 0 or self.reference_log_probs is None:
            return always
        return (*always, self.policy_log_probs, self.reference_log_probs)

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return (self.rewards,)


@dataclass(frozen=True)
class Gae:
    """Generalized advantage estimation; returns = advantages + values. It does not whiten.

    Source: Schulman et al., High-dimensional continuous control using GAE, section 3.
    """

    gamma: float
    """Discount per token."""
    lam: float
    """Bias-variance trade-off."""
    values: str
    """The field with a critic's values, such as critic_values."""
    rewards: str = fields.TOKEN_REWARDS
    """The field with every token's reward."""
    advantages: str = fields.ADVANTAGES
    """The field for them."""
    returns: str = fields.RETURNS
    """The field for the critic's targets."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        return (self.rewards, self.values)

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return (self.advantages, self.returns)


@dataclass(frozen=True)
class Whiten:
    """Advantages shifted to mean 0 and scaled to variance 1 over the tokens of valid rows."""

    valid: str
    """The field that says which rows are, such as reward_valid."""
    advantages: str = fields.ADVANTAGES
    """The field that it replaces."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        return (self.advantages, self.valid)

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return (self.advantages,)


@dataclass(frozen=True)
class GroupAdvantages:
    """Scores relative to the valid samples of the same prompt, spread over the response's tokens.

    Source: DeepSeekMath, section 4.1; without the standard deviation Dr.GRPO.
    """

    scores: str
    """The field with the scores, such as reward_scores."""
    valid: str
    """The field that says which rows have one, such as reward_valid."""
    normalize_by_std: bool = True
    """Whether they are divided by the group's standard deviation."""
    advantages: str = fields.ADVANTAGES
    """The field that it writes."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        return (self.scores, fields.PROMPT_ID, self.valid, fields.RESPONSE_TOKENS)

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return (self.advantages,)


@dataclass(frozen=True)
class LagrangeMultiplier:
    """What a constraint weighs: a number that grows while costs are above their limit and shrinks
    below it. It is learned once a step, on a logarithmic scale: log m += learning_rate x m x (mean
    cost - limit). It is the algorithm's own state, kept over steps and in checkpoints.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.

    Raises:
        FlowError: an initial value that has no logarithm.
    """

    costs: str
    """The field with the costs, such as cost_scores."""
    valid: str
    """The field that says which rows have one, such as cost_valid."""
    limit: float = 0.0
    """The mean cost that is allowed."""
    learning_rate: float = 0.1
    initial: float = 1.0
    """Before the first step."""
    maximum: float = 10.0
    """It grows no further: its growth is in proportion to itself."""
    multiplier: str = "multiplier"
    """The field for it, the same number in each row; its name in checkpoints as well."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("learning_rate", "maximum"):
            value = getattr(self, name)
            check(owner, name, value, is_number(value), "a number of at least 0")
        is_between = is_number(self.initial) and 0 < self.initial <= self.maximum
        allowed = f"a number above 0 and at most maximum={self.maximum!r}"
        check(owner, "initial", self.initial, is_between, allowed)

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        return (self.costs, self.valid)

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return (self.multiplier,)


@dataclass(frozen=True)
class PenalizedAdvantages:
    """(advantages of the reward - m x those of the cost) / (1 + m), with the multiplier m.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.
    """

    costs: str
    """The field with the cost's advantages."""
    multiplier: str = "multiplier"
    """The field with the multiplier."""
    advantages: str = fields.ADVANTAGES
    """The field with the reward's, which it replaces."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields that it needs."""
        return (self.advantages, self.costs, self.multiplier)

    @property
    def writes(self) -> tuple[str, ...]:
        """Fields that it makes."""
        return (self.advantages,)


@dataclass(frozen=True)
class Custom:
    """A function of the user's own: it gets the columns that it reads by name, of all rows that
    its scope names, and returns those that it writes.

    Raises:
        FlowError: the entry point has another form, a list of names is a single string, or a name
        is none that a field may have.
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
    """What it has to see."""

    def __post_init__(self) -> None:
        module, colon, name = self.entrypoint.partition(":")
        if not (module and colon and name.isidentifier()):
            raise FlowError(
                f"an operation's entry point names no function: got {self.entrypoint!r}, "
                "allowed package.module:function; write it so"
            )
        for label, names in (("reads", self.reads), ("writes", self.writes)):
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
            object.__setattr__(self, label, tuple(names))
        object.__setattr__(self, "parameters", dict(self.parameters))


Operation = (
    TokenRewards
    | Gae
    | Whiten
    | GroupAdvantages
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
    LagrangeMultiplier("cost_scores", "cost_valid"),
)
"""For messages that say where a field comes from."""
