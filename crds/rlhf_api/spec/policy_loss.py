"""Settings that all policy-gradient algorithms share: KL penalty, clipping, aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Fraction, NonNegativeFloat
from rlhf_api.rules import Rule, violation_if


class KlEstimator(StrEnum):
    """Estimators of KL(policy, reference) from one sampled token.

    lp is the policy's and ref the reference's log-probability of the token.

    Source: Schulman, Approximating KL divergence, 2020.
    """

    K1 = "K1"
    """lp - ref: unbiased, may be negative."""
    K2 = "K2"
    """(lp - ref)^2 / 2: biased, low variance."""
    K3 = "K3"
    """exp(ref - lp) - (ref - lp) - 1: unbiased; in a loss the gradient of KL(reference, policy)."""
    # Source: DeepSeek-V3.2 (arXiv 2512.02556), section 3.1.
    K3_CORRECTED = "K3Corrected"
    """K3 x (policy / sampling policy), in a loss only: the gradient of KL(policy, reference)."""


class KlPlacement(StrEnum):
    """Target of the KL penalty: the token rewards, or the loss."""

    REWARD = "Reward"
    """It is subtracted from every token's reward."""
    LOSS = "Loss"
    """It is a term of the loss."""


class LossAggregation(StrEnum):
    """Aggregation of token losses to one number. Every divisor is counted over the complete
    mini-batch, with responses of advantage 0, such as those of equal scores to a prompt."""

    TOKEN_MEAN = "TokenMean"
    """Sum over tokens / number of tokens."""
    SEQUENCE_MEAN_TOKEN_SUM = "SequenceMeanTokenSum"
    """Mean over sequences of the sum over their tokens."""
    SEQUENCE_MEAN_TOKEN_MEAN = "SequenceMeanTokenMean"
    """Mean over sequences of the mean over their tokens (original GRPO)."""
    SEQUENCE_MEAN_FIXED_LENGTH = "SequenceMeanFixedLength"
    """Mean over sequences of the sum over their tokens / maxResponseTokens (Dr.GRPO)."""


class PolicyObjective(StrEnum):
    """Use of the probability ratio of a token, policy / sampling policy, in the policy's loss.

    Sources: PPO (arXiv 1707.06347), equation 7; GSPO (arXiv 2507.18071), section 4.1; CISPO in
    MiniMax-M1 (arXiv 2506.13585), section 3.1.
    """

    CLIPPED = "Clipped"
    """Each token's ratio weights its advantage, with pessimistic clipping (PPO)."""
    GSPO = "GSPO"
    """The same with one ratio for each response: the geometric mean of its tokens' ratios."""
    CISPO = "CISPO"
    """The clipped ratio weights the log-probability and has no gradient, so no token is dropped."""


# Defaults of clipRange and clipRangeHigh.
# The ratio of a complete response varies less than a token's; CISPO has no lower bound.
CLIPS = {
    PolicyObjective.CLIPPED: (0.2, 0.2),
    PolicyObjective.GSPO: (3e-4, 4e-4),
    PolicyObjective.CISPO: (1.0, 4.0),
}


class AdaptiveKl(Contract):
    """A KL coefficient that follows the measured divergence: after every step it is multiplied by 1
    + clip(kl / target - 1, -0.2, 0.2) x responses / horizon.

    kl is the mean over the step's responses of the KL estimates, summed over the tokens of each;
    responses are those of the step, prompts x samples, and count as one horizon at most. The
    coefficient is in checkpoints. A step uses the one that the steps before it have made.

    Source: Ziegler et al., Fine-tuning language models from human preferences (arXiv 1909.08593),
    section 2.2.
    """

    target: Annotated[float, Field(gt=0.0, le=1e6)]
    """Desired KL(policy, reference) of a complete response, in nats, such as 6. It is a sum over
    tokens: longer responses need a larger one."""
    horizon: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10000
    """Number of responses over which the coefficient changes by at most 20 percent."""


class AlgorithmSettings(Contract):
    """Settings of a built-in algorithm, and its requirements on the manifest."""

    roles: ClassVar[tuple[str, ...]]
    """Its roles with a model; the first one is required."""
    reward_roles: ClassVar[tuple[str, ...]] = ("reward",)
    """Its roles that score; empty if it does not learn from rewards."""
    takes_pairs: ClassVar[bool] = False
    """True if its data are preference pairs, not prompts."""
    takes_answers: ClassVar[bool] = False
    """True if its data need reference answers."""
    compares_samples: ClassVar[bool] = False
    """True if it compares the samples of a prompt, and so needs two or more."""


class PolicyLossSettings(AlgorithmSettings):
    """Settings that every policy-gradient algorithm shares."""

    objective: PolicyObjective = PolicyObjective.CLIPPED
    """Use of the probability ratio of tokens, policy / sampling policy, in the loss: Clipped (PPO),
    GSPO or CISPO."""
    clip_range: Fraction | None = None
    """Lower clip of the ratio: 1 - clipRange. Without clipRangeHigh the upper clip is 1 +
    clipRange. Default: 0.2; for GSPO 0.0003, for CISPO 1."""
    clip_range_high: NonNegativeFloat | None = None
    """Upper clip of the ratio: 1 + clipRangeHigh. Default: clipRange; if that is not set either,
    0.2, for DAPO 0.28, for GSPO 0.0004 and for CISPO 4."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Bound for negative advantages: the loss is at most -dualClip x advantage. Default: no
    bound."""
    importance_cap: Annotated[float, Field(ge=1.0, le=1e6)] = 2.0
    """Largest weight of a token in truncated importance sampling: the ratio of its probability
    in the training engine to that in the generation engine. It applies if the training engine
    recomputes log-probabilities of sampled tokens (in bfloat16, or with several updates per
    step)."""
    rejection_threshold: Annotated[float, Field(gt=1.0)] | None = None
    """Drop a response whose mean per-token ratio of training to generation engine, or its inverse,
    exceeds this, such as 1.05 (geometric mean). It applies under the same condition as
    importanceCap. Default: no response is dropped."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus in the loss."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL penalty against the reference. With 0 no reference model is needed."""
    adaptive_kl: AdaptiveKl | None = None
    """Adaptation of the coefficient of the KL penalty on rewards, which begins at klCoefficient.
    Default: the coefficient stays."""
    kl_placement: KlPlacement = KlPlacement.REWARD
    """Target of the KL penalty: Reward, or Loss."""
    kl_estimator: KlEstimator | None = None
    """Estimator of the KL divergence. K1 is not allowed in the loss, where its mean gradient is
    zero. K3 in the loss has the gradient of KL(reference, policy); K3Corrected that of KL(policy,
    reference), as K2 has for a single update. Default: K1 in rewards, K2 in the loss; for GRPO and
    DAPO K3 in the loss, as their papers have it."""
    loss_aggregation: LossAggregation | None = None
    """Aggregation of token losses to one number. Default: TokenMean; for GSPO
    SequenceMeanTokenMean."""
    epochs_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of times a step trains on its rollouts."""

    default_clip_high: ClassVar[float] = CLIPS[PolicyObjective.CLIPPED][1]
    """Default of the upper clip range with objective Clipped."""
    default_kl_estimators: ClassVar[Mapping[KlPlacement, KlEstimator]] = {
        KlPlacement.REWARD: KlEstimator.K1,
        KlPlacement.LOSS: KlEstimator.K2,
    }
    """Default estimators of the KL divergence."""

    @property
    def estimator(self) -> KlEstimator:
        """The estimator of the KL divergence in force."""
        return self.kl_estimator or self.default_kl_estimators[self.kl_placement]

    @property
    def has_kl_loss(self) -> bool:
        """True if the loss has a KL term."""
        return self.kl_coefficient > 0 and self.kl_placement is KlPlacement.LOSS

    @property
    def kl_reward_coefficient(self) -> float:
        """Weight of the KL penalty in rewards; 0 without one."""
        return 0.0 if self.kl_placement is KlPlacement.LOSS else self.kl_coefficient

    @property
    def clip_low(self) -> float:
        """The lower clip range in force."""
        return CLIPS[self.objective][0] if self.clip_range is None else self.clip_range

    @property
    def clip_high(self) -> float:
        """The upper clip range in force."""
        if self.clip_range_high is not None:
            return self.clip_range_high
        if self.clip_range is not None:
            return self.clip_range
        is_clipped = self.objective is PolicyObjective.CLIPPED
        return self.default_clip_high if is_clipped else CLIPS[self.objective][1]

    @property
    def aggregation(self) -> LossAggregation:
        """The aggregation in force."""
        if self.loss_aggregation is not None:
            return self.loss_aggregation
        # A ratio per response belongs to a mean per response, as in the GSPO paper.
        if self.objective is PolicyObjective.GSPO:
            return LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN
        return LossAggregation.TOKEN_MEAN

    validations: ClassVar[tuple[Rule, ...]] = (
        # The gradient of log p has mean zero under p, so K1 would only add noise to the loss.
        Rule(
            holds="self.klPlacement != 'Loss' || !has(self.klEstimator) || "
            "self.klEstimator != 'K1'",
            what="a KL term without effect: the mean gradient of K1 in a loss is zero",
            got="self.klEstimator",
            allowed="K2, K3 or K3Corrected",
            do="choose one, or write klPlacement: Reward",
            field=".klEstimator",
            check=lambda self: violation_if(
                self.kl_placement is KlPlacement.LOSS and self.kl_estimator is KlEstimator.K1, "K1"
            ),
        ),
        Rule(
            holds="self.klPlacement != 'Reward' || !has(self.klEstimator) || "
            "self.klEstimator != 'K3Corrected'",
            what="a correction of gradients, which rewards do not have",
            got="self.klEstimator",
            allowed="K1, K2 or K3",
            do="write K3, or klPlacement: Loss",
            field=".klEstimator",
            check=lambda self: violation_if(
                self.kl_placement is KlPlacement.REWARD
                and self.kl_estimator is KlEstimator.K3_CORRECTED,
                KlEstimator.K3_CORRECTED.value,
            ),
        ),
        Rule(
            holds="!has(self.adaptiveKl) || self.klCoefficient > 0.0 && "
            "self.klPlacement == 'Reward'",
            what="an adaptive coefficient without a KL penalty on rewards",
            allowed="klCoefficient above 0, where the adaptation begins, and klPlacement: Reward",
            do="set them, or remove adaptiveKl",
            field=".adaptiveKl",
            check=lambda self: violation_if(
                self.adaptive_kl is not None and self.kl_reward_coefficient == 0
            ),
        ),
        Rule(
            holds="!has(self.dualClip) || self.objective == 'Clipped'",
            what="a dual clip, which this objective does not have",
            got="self.objective",
            allowed="Clipped",
            do="remove dualClip, or change objective",
            field=".dualClip",
            check=lambda self: violation_if(
                self.dual_clip is not None and self.objective is not PolicyObjective.CLIPPED,
                self.objective.value,
            ),
        ),
    )
