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

# A policy and its reference.
POLICY = ("actor", "reference")


# Sources: PPO (arXiv 1707.06347); generalized advantage estimation (arXiv 1506.02438).
class PpoSettings(PolicyLossSettings):
    """Proximal policy optimization with a critic and generalized advantage estimation."""

    roles: ClassVar[tuple[str, ...]] = (*POLICY, "critic")

    gamma: Fraction = 1.0
    """Discount per token."""
    gae_lambda: Fraction = 0.95
    """Bias-variance trade-off of generalized advantage estimation."""
    value_clip_range: PositiveFloat | None = None
    """Clip of new values in the value loss: their largest distance from the old values. Default: no
    clip."""
    whiten_advantages: bool = True
    """If true, advantages are whitened over the batch: mean 0, variance 1."""
    critic_warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of first steps in which only critics are trained."""


# Sources: GRPO in DeepSeekMath (arXiv 2402.03300); Dr.GRPO (arXiv 2503.20783).
class GrpoSettings(PolicyLossSettings):
    """Group relative policy optimization: advantages relative to the samples of the same prompt.

    Dr.GRPO is normalizeByStd false with lossAggregation SequenceMeanFixedLength; GSPO and CISPO are
    values of objective.
    """

    roles: ClassVar = POLICY
    compares_samples: ClassVar = True
    default_kl_estimators: ClassVar = {
        **PolicyLossSettings.default_kl_estimators,
        KlPlacement.LOSS: KlEstimator.K3,
    }

    normalize_by_std: bool = True
    """If true, advantages are divided by the standard deviation of their group; Dr.GRPO: false."""
    kl_placement: KlPlacement = KlPlacement.LOSS
    """Target of the KL penalty: Reward, or Loss."""


# Source: DAPO (arXiv 2503.14476).
class DapoSettings(GrpoSettings):
    """GRPO with fresh prompts until enough of them have responses of different scores, a higher
    upper clip, and a penalty on responses near the length limit."""

    default_clip_high: ClassVar = 0.28

    max_rounds: Annotated[int, Field(ge=1, le=64)] = 4
    """Largest number of rounds of promptsPerStep prompts that a step samples."""
    expected_rounds: Annotated[float, Field(ge=1.0, le=64.0)] = 1.5
    """Mean number of rounds of a step, for planning."""
    overlong_tokens: NonNegativeCount = 0
    """Length of the penalized range before maxResponseTokens. A response that ends in it loses a
    share of overlongPenalty, in proportion to its tokens there. 0: no penalty."""
    overlong_penalty: NonNegativeFloat = 1.0
    """Penalty on the score of a response of maxResponseTokens."""

    validations: ClassVar = (
        *GrpoSettings.validations,
        Rule(
            holds="self.expectedRounds <= double(self.maxRounds)",
            what="a mean number of rounds above the limit",
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


# Source: Back to basics (arXiv 2402.14740).
class RlooSettings(PolicyLossSettings):
    """REINFORCE leave-one-out: each response against the mean of the prompt's others."""

    roles: ClassVar = POLICY
    compares_samples: ClassVar = True


# Source: OPO (arXiv 2505.23585).
class OpoSettings(PolicyLossSettings):
    """On-policy optimization with the baseline of least variance: the length-weighted mean score of
    the prompt's responses."""

    roles: ClassVar = POLICY
    compares_samples: ClassVar = True


# Source: REINFORCE++ (arXiv 2501.03262).
class ReinforcePlusPlusSettings(PolicyLossSettings):
    """REINFORCE++: discounted rewards-to-go, whitened over the batch; no critic."""

    roles: ClassVar = POLICY

    gamma: Fraction = 1.0
    """Discount per token; without effect with groupBaseline."""
    group_baseline: bool = False
    """If true, the mean score of the prompt's samples is subtracted before whitening:
    REINFORCE++-baseline."""


# Source: ReMax (arXiv 2310.10505).
class ReMaxSettings(PolicyLossSettings):
    """ReMax: the score of the greedy response is the baseline. No critic, any number of samples."""

    roles: ClassVar = POLICY


# Source: Safe RLHF (arXiv 2310.12773).
class SafeRlhfSettings(PpoSettings):
    """PPO under a constraint: a learned multiplier keeps a cost with its own critic below a budget.
    Rewards of role cost are costs."""

    roles: ClassVar = (*POLICY, "critic", "cost_critic")
    reward_roles: ClassVar = ("reward", "cost")

    cost_budget: float = 0.0
    """Budget of the mean cost."""
    multiplier_learning_rate: NonNegativeFloat = 0.1
    """Learning rate of the multiplier's logarithm."""
    initial_multiplier: PositiveFloat = 1.0
    """Initial weight of the cost."""
    max_multiplier: PositiveFloat = 10.0
    """Largest weight of the cost."""
    pretraining_weight: NonNegativeFloat = 0.0
    """Weight of the cross-entropy on data.pretraining in the actor's loss (ptx). With 0 no such
    data are needed."""

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
    """Settings that training on preferences shares."""

    roles: ClassVar = POLICY

    beta: PositiveFloat = 0.1
    """Strength of the bond to the reference: the implicit reward is beta x log-ratio of policy to
    reference."""
    label_smoothing: Fraction = 0.0
    """Assumed share of preferences with swapped labels."""
    epochs_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of times a step trains on its pairs."""

    validations: ClassVar = (
        Rule(
            holds="self.labelSmoothing < 0.5",
            what="with half or more of the preferences swapped, training learns the opposite",
            allowed="less than 0.5",
            do="lower it",
            field=".labelSmoothing",
            check=lambda self: violation_if(
                self.label_smoothing >= 0.5, f"{self.label_smoothing:g}"
            ),
        ),
    )


# Source: DPO (arXiv 2305.18290).
class DpoSettings(PreferenceSettings):
    """Direct preference optimization on pairs of data.train.preferences."""

    reward_roles: ClassVar = ()
    takes_pairs: ClassVar = True


class OnlineDpoSettings(PreferenceSettings):
    """Online iterative DPO: every step generates responses, takes the best and the worst response
    to each prompt as a pair, and trains on the pairs."""

    compares_samples: ClassVar = True

    reference_every_steps: Count | None = None
    """Number of steps after which the reference copies the actor's weights: an iteration. Default:
    it never does."""
    save_pairs: bool = False
    """If true, each step's pairs are saved as a data set, saved/pairs/step-000012.jsonl in the
    run's folder. A line has the data's row, its prompt, both responses and their scores; pairs with
    an empty response or two equal ones are left out. data.train accepts such a file with
    preferences. A step with 1000 rows of 1 KB and responses of 2 KB takes 5 MB."""


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
    """Number of times a step trains on its pairs."""
