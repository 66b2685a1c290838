"""Which algorithm a job runs, with the settings of each."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Entrypoint,
    Fraction,
    Identifier,
    NonNegativeFloat,
    PositiveFloat,
)
from rlhf_api.cel import text
from rlhf_api.rules import Rule, found


class KlEstimator(StrEnum):
    """Estimators of KL(policy, reference) from one sample of it.

    With lp the policy's and ref the reference's log-probability of a token.
    Source: Schulman, Approximating KL divergence, 2020.
    """

    K1 = "K1"
    """lp - ref: unbiased, may be negative."""
    K2 = "K2"
    """(lp - ref)^2 / 2: biased, low variance."""
    K3 = "K3"
    """exp(ref - lp) - (ref - lp) - 1: unbiased, never negative."""


class KlPlacement(StrEnum):
    """Where the KL penalty acts: on the token rewards, or as a term of the loss."""

    REWARD = "Reward"
    """Subtracted from every token's reward."""
    LOSS = "Loss"
    """A term of the loss."""


class LossAggregation(StrEnum):
    """How token losses become one number. All divide by counts of the whole mini-batch."""

    TOKEN_MEAN = "TokenMean"
    """Sum over tokens / number of tokens."""
    SEQUENCE_MEAN_TOKEN_SUM = "SequenceMeanTokenSum"
    """Mean over sequences of the sum over their tokens."""
    SEQUENCE_MEAN_TOKEN_MEAN = "SequenceMeanTokenMean"
    """Mean over sequences of the mean over their tokens (original GRPO)."""
    SEQUENCE_MEAN_FIXED_LENGTH = "SequenceMeanFixedLength"
    """Mean over sequences of the sum over their tokens / maxResponseTokens (Dr.GRPO)."""


class PolicyLossSettings(Contract):
    """What every clipped policy-gradient algorithm shares."""

    clip_range: Fraction = 0.2
    """The probability ratio is clipped to at least 1 - clipRange, and, without clipRangeHigh, to at
    most 1 + clipRange."""
    clip_range_high: NonNegativeFloat | None = None
    """The ratio's upper clip is 1 + clipRangeHigh (DAPO uses 0.28). Default: clipRange."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """For negative advantages the loss is at most -dualClip x advantage. Default: no such bound."""
    importance_cap: Annotated[float, Field(ge=1.0, le=1e6)] = 2.0
    """Where the training engine computes log-probabilities of what was sampled (in bfloat16, or for
    several updates of a step), a token weighs as much more as it is likelier there than in the
    generation engine, at most so much: truncated importance sampling."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus in the loss."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL penalty against the reference. 0 needs no reference model."""
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    """How token losses become one number."""
    epochs_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """How often a step trains on its rollouts."""

    @property
    def estimator(self) -> KlEstimator:
        """The estimator of the KL divergence in force."""
        raise NotImplementedError

    @property
    def clip_high(self) -> float:
        """The upper clip range in force."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high


class PpoSettings(PolicyLossSettings):
    """Proximal policy optimization with a critic and generalized advantage estimation."""

    gamma: Fraction = 1.0
    """Discount per token."""
    gae_lambda: Fraction = 0.95
    """Bias-variance trade-off of generalized advantage estimation."""
    kl_placement: KlPlacement = KlPlacement.REWARD
    """Where the KL penalty acts: on every token's reward, or as a term of the loss."""
    kl_estimator: KlEstimator | None = None
    """Which estimator of the KL divergence is used; not K1 in the loss, where its gradient is zero
    on average. Default: K1 in rewards, K2 in the loss."""
    value_clip_range: PositiveFloat | None = None
    """The value loss clips new values to this distance from the old ones. Default: no clip."""
    whiten_advantages: bool = True
    """Whether advantages are shifted to mean 0 and scaled to variance 1 over the batch."""
    critic_warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """For so many first steps only the critic is trained."""

    @property
    def estimator(self) -> KlEstimator:
        """The estimator of the KL divergence in force."""
        default = KlEstimator.K2 if self.kl_placement is KlPlacement.LOSS else KlEstimator.K1
        return default if self.kl_estimator is None else self.kl_estimator

    validations: ClassVar = (
        Rule(
            holds="self.klPlacement != 'Loss' || !has(self.klEstimator) || "
            "self.klEstimator != 'K1'",
            what="a KL term without effect: the gradient of K1 in a loss is zero on average",
            got="self.klEstimator",
            allowed="K2 or K3",
            do="choose one, or klPlacement Reward",
            field=".klEstimator",
            check=lambda self: found(
                self.kl_placement is KlPlacement.LOSS and self.kl_estimator is KlEstimator.K1, "K1"
            ),
        ),
    )


class GrpoSettings(PolicyLossSettings):
    """Group relative policy optimization: advantages relative to the samples of the same prompt."""

    normalize_by_std: bool = True
    """Whether advantages are divided by the standard deviation of their group; Dr.GRPO: false."""
    kl_placement: Literal[KlPlacement.LOSS] = KlPlacement.LOSS
    """Where the KL penalty acts: GRPO has it in the loss."""
    kl_estimator: Literal[KlEstimator.K2, KlEstimator.K3] = KlEstimator.K3
    """Which estimator of the KL divergence is used; K1's gradient in a loss is zero on average."""

    @property
    def estimator(self) -> KlEstimator:
        """The estimator of the KL divergence in force."""
        return self.kl_estimator


ParameterValue = bool | int | float | Annotated[str, Field(max_length=1024)]
"""A parameter of user code: true or false, a number, or a short text."""


class CustomSettings(Contract):
    """An algorithm of the user's own."""

    entrypoint: Entrypoint
    """The algorithm's class as `package.module:Class`, a subclass of rlhf_flow.Algorithm."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the class as keyword arguments."""


class AlgorithmType(StrEnum):
    """The algorithms that a manifest can name."""

    PPO = "PPO"
    """Proximal policy optimization with a critic."""
    GRPO = "GRPO"
    """Group relative policy optimization: no critic, several samples of every prompt."""
    CUSTOM = "Custom"
    """A class of your own."""

    @property
    def settings_field(self) -> str:
        """The field of the algorithm that holds its settings."""
        return self.value.lower()


def _only_with(kind: AlgorithmType) -> Rule:
    field = kind.settings_field
    return Rule(
        holds=f"!has(self.{field}) || self.type == {text(kind.value)}",
        what="settings of another algorithm",
        got=f"{text(f'{field} beside type ')} + self.type",
        do=f"remove {field} or change type",
        field=f".{field}",
        check=lambda self: found(
            getattr(self, field) is not None and self.type is not kind,
            f"{field} beside type {self.type.value}",
        ),
    )


class AlgorithmSpec(Contract):
    """The algorithm and its settings, in the field named like `type`."""

    type: AlgorithmType
    """Which algorithm: PPO, GRPO, or Custom for a class of your own."""
    ppo: PpoSettings | None = None
    """Settings of PPO; only with type PPO."""
    grpo: GrpoSettings | None = None
    """Settings of GRPO; only with type GRPO."""
    custom: CustomSettings | None = None
    """Entry point and parameters; only, and always, with type Custom."""

    validations: ClassVar = (
        *(_only_with(kind) for kind in AlgorithmType),
        Rule(
            holds="self.type != 'Custom' || has(self.custom)",
            what="type Custom without its entry point",
            do="add custom: {entrypoint: package.module:Class}",
            field=".custom",
            check=lambda self: found(self.type is AlgorithmType.CUSTOM and self.custom is None),
        ),
    )

    @property
    def settings(self) -> PpoSettings | GrpoSettings | CustomSettings:
        """The settings in force: the given member, or the type's defaults."""
        if self.type is AlgorithmType.PPO:
            return self.ppo or PpoSettings()
        if self.type is AlgorithmType.GRPO:
            return self.grpo or GrpoSettings()
        assert self.custom is not None
        return self.custom
