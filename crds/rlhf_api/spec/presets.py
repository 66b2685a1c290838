"""Settings of the built-in algorithms: one model each."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Count, Fraction, NonNegativeCount, NonNegativeFloat, PositiveFloat
from rlhf_api.rules import Rule, violation_if
from rlhf_api.spec.policy_loss import (
    AlgorithmSettings,
    KlEstimator,
    KlPlacement,
    PolicyLossSettings,
)

POLICY = ("actor", "reference")
"""A policy, and what it may be held against."""


class PpoSettings(PolicyLossSettings):
    """Proximal policy optimization with a critic and generalized advantage estimation."""

    roles: ClassVar[tuple[str, ...]] = (*POLICY, "critic")

    gamma: Fraction = 1.0
    """Discount per token."""
    gae_lambda: Fraction = 0.95
    """Bias-variance trade-off of generalized advantage estimation."""
    value_clip_range: PositiveFloat | None = None
    """The value loss clips new values to this distance from the old ones. Default: no clip."""
    whiten_advantages: bool = True
    """Whether advantages are shifted to mean 0 and scaled to variance 1 over the batch."""
    critic_warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """For so many first steps only critics are trained."""


class GrpoSettings(PolicyLossSettings):
    """Group relative policy optimization: advantages relative to the samples of the same prompt.

    Dr.GRPO is normalizeByStd false with lossAggregation SequenceMeanFixedLength; GSPO and CISPO are
    values of objective.
    """

    roles: ClassVar = POLICY
    compares_samples: ClassVar = True
    default_loss_estimator: ClassVar = KlEstimator.K3

    normalize_by_std: bool = True
    """Whether advantages are divided by the standard deviation of their group; Dr.GRPO: false."""
    kl_placement: KlPlacement = KlPlacement.LOSS
    """Where the KL penalty acts: on rewards, or as a term of the loss."""


class DapoSettings(GrpoSettings):
    """GRPO with fresh prompts until enough of them have responses of different scores, a higher
    upper clip, and a penalty on responses near the length limit."""

    default_clip_high: ClassVar = 0.28

    max_rounds: Annotated[int, Field(ge=1, le=64)] = 4
    """At most so many times promptsPerStep prompts are sampled in a step."""
    expected_rounds: Annotated[float, Field(ge=1.0, le=64.0)] = 1.5
    """Rounds of a step on average, for planning."""
    overlong_tokens: NonNegativeCount = 0
    """A response that ends within so many tokens of maxResponseTokens loses up to overlongPenalty
    of its score, in proportion. 0: none does."""
    overlong_penalty: NonNegativeFloat = 1.0
    """What a response of full length loses."""

    validations: ClassVar = (
        *GrpoSettings.validations,
        Rule(
            holds="self.expectedRounds <= double(self.maxRounds)",
            what="more rounds on average than there may be",
            allowed="at most maxRounds",
            do="lower it, or raise maxRounds",
            field=".expectedRounds",
            check=lambda self: violation_if(
                self.expected_rounds > self.max_rounds,
                f"{self.expected_rounds:g}",
                f"at most maxRounds, {self.max_rounds}",
            ),
        ),
    )


class RlooSettings(PolicyLossSettings):
    """REINFORCE leave-one-out: each response against the mean of the prompt's others."""

    roles: ClassVar = POLICY
    compares_samples: ClassVar = True


class OpoSettings(PolicyLossSettings):
    """On-policy optimization with the baseline of least variance: the prompt's mean score, each
    response weighted by its length."""

    roles: ClassVar = POLICY
    compares_samples: ClassVar = True


class ReinforcePlusPlusSettings(PolicyLossSettings):
    """REINFORCE++: discounted rewards-to-go, whitened over the batch; no critic."""

    roles: ClassVar = POLICY

    gamma: Fraction = 1.0
    """Discount per token; without effect with groupBaseline."""
    group_baseline: bool = False
    """Whether the mean score of the prompt's samples is taken off before whitening: the variant
    with a baseline."""


class ReMaxSettings(PolicyLossSettings):
    """ReMax: the score of the greedy response is the baseline; no critic, any number of samples."""

    roles: ClassVar = POLICY


class SafeRlhfSettings(PpoSettings):
    """PPO under a constraint: a cost with a critic of its own stays below a budget, held by a
    learned multiplier. Rewards of role cost are costs."""

    roles: ClassVar = (*POLICY, "critic", "cost_critic")
    reward_roles: ClassVar = ("reward", "cost")

    cost_budget: float = 0.0
    """The mean cost that is allowed."""
    multiplier_learning_rate: NonNegativeFloat = 0.1
    """Step size of the multiplier, on a logarithmic scale."""
    initial_multiplier: PositiveFloat = 1.0
    """What the cost weighs before the first step."""
    max_multiplier: PositiveFloat = 10.0
    """What it weighs at most."""
    pretraining_weight: NonNegativeFloat = 0.0
    """Weight of the cross-entropy on data.pretraining in the actor's loss (ptx). 0 needs none."""

    validations: ClassVar = (
        *PpoSettings.validations,
        Rule(
            holds="self.initialMultiplier <= self.maxMultiplier",
            what="a multiplier above its largest value",
            allowed="at most maxMultiplier",
            do="lower it, or raise maxMultiplier",
            field=".initialMultiplier",
            check=lambda self: violation_if(
                self.initial_multiplier > self.max_multiplier,
                f"{self.initial_multiplier:g}",
                f"at most maxMultiplier, {self.max_multiplier:g}",
            ),
        ),
    )


class PreferenceSettings(AlgorithmSettings):
    """What training on preferences shares."""

    roles: ClassVar = POLICY

    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the reference: the reward is beta x its log-ratio."""
    label_smoothing: Fraction = 0.0
    """Share of preferences that are taken to be the wrong way round."""
    epochs_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """How often a step trains on its pairs."""

    validations: ClassVar = (
        Rule(
            holds="self.labelSmoothing < 0.5",
            what="preferences of which half or more are taken to be wrong teach the opposite",
            allowed="less than 0.5",
            do="lower it",
            field=".labelSmoothing",
            check=lambda self: violation_if(
                self.label_smoothing >= 0.5, f"{self.label_smoothing:g}"
            ),
        ),
    )


class DpoSettings(PreferenceSettings):
    """Direct preference optimization on pairs of data.train.preferences."""

    reward_roles: ClassVar = ()
    takes_pairs: ClassVar = True


class OnlineDpoSettings(PreferenceSettings):
    """Online iterative DPO: every step answers its prompts, takes the best and the worst response
    to each as a pair, and trains on these."""

    compares_samples: ClassVar = True

    reference_every_steps: Count | None = None
    """The reference takes the actor's weights every so many steps: an iteration. Default: it never
    does."""
    save_pairs: bool = False
    """Whether each step's pairs are kept as a data set of their own: the run's folder then has
    saved/pairs/step-000012.jsonl, a line for each pair with the data's row, its prompt, both
    responses and their scores; pairs with an empty response or two equal ones are left out.
    data.train takes such a file as preferences. A line has the bytes of the row and two responses:
    1000 rows of 1 KB with responses of 2 KB are 5 MB for a step."""


class SftSettings(AlgorithmSettings):
    """Supervised fine-tuning: cross-entropy on reference answers."""

    roles: ClassVar = ("actor",)
    reward_roles: ClassVar = ()
    takes_answers: ClassVar = True


class RewardModelSettings(AlgorithmSettings):
    """Training of a reward model on preference pairs, by the Bradley-Terry model."""

    roles: ClassVar = ("reward_model",)
    reward_roles: ClassVar = ()
    takes_pairs: ClassVar = True

    epochs_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """How often a step trains on its pairs."""
