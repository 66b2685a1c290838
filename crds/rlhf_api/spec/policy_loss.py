"""What algorithms that train a policy by its gradient share: KL penalty, clips, aggregation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Fraction, NonNegativeFloat
from rlhf_api.rules import Rule, violation_if


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


class PolicyObjective(StrEnum):
    """What the policy's loss does with the ratio of a token's probabilities, now and when sampled.

    Sources: PPO (arXiv 1707.06347), equation 7; GSPO (arXiv 2507.18071), section 4.1; CISPO in
    MiniMax-M1 (arXiv 2506.13585), section 3.1.
    """

    CLIPPED = "Clipped"
    """Each token's ratio weighs its advantage and is clipped pessimistically (PPO)."""
    GSPO = "GSPO"
    """The same with one ratio for a response: the geometric mean of its tokens'."""
    CISPO = "CISPO"
    """The clipped ratio weighs the log-probability and has no gradient: no token is dropped."""


CLIPS = {
    PolicyObjective.CLIPPED: (0.2, 0.2),
    PolicyObjective.GSPO: (3e-4, 4e-4),
    PolicyObjective.CISPO: (1.0, 4.0),
}
"""Defaults of clipRange and clipRangeHigh: the ratio of a whole response moves less than a token's;
CISPO has no lower bound."""


class AlgorithmSettings(Contract):
    """Settings of a built-in algorithm, and what its manifest has to have."""

    roles: ClassVar[tuple[str, ...]]
    """Its roles with a model, the one that is always there first."""
    reward_roles: ClassVar[tuple[str, ...]] = ("reward",)
    """Its roles that score. None: it does not learn from rewards."""
    takes_pairs: ClassVar[bool] = False
    """Whether its data are preference pairs, not prompts."""
    takes_answers: ClassVar[bool] = False
    """Whether its data have reference answers."""
    compares_samples: ClassVar[bool] = False
    """Whether it compares the samples of a prompt, of which there have to be two."""


class PolicyLossSettings(AlgorithmSettings):
    """What every policy-gradient algorithm shares."""

    objective: PolicyObjective = PolicyObjective.CLIPPED
    """What the loss does with the ratio of a token's probabilities, now and when sampled: Clipped
    (PPO), GSPO or CISPO."""
    clip_range: Fraction | None = None
    """The ratio is clipped to at least 1 - clipRange, and, without clipRangeHigh, to at most
    1 + clipRange. Default: 0.2; for GSPO 0.0003, for CISPO 1."""
    clip_range_high: NonNegativeFloat | None = None
    """The ratio's upper clip is 1 + clipRangeHigh. Default: clipRange; where that is not given
    either, 0.2, for DAPO 0.28, for GSPO 0.0004 and for CISPO 4."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """For negative advantages the loss is at most -dualClip x advantage. Default: no such bound."""
    importance_cap: Annotated[float, Field(ge=1.0, le=1e6)] = 2.0
    """Where the training engine computes log-probabilities of what was sampled (in bfloat16, or for
    several updates of a step), a token weighs as much more as it is likelier there than in the
    generation engine, at most so much: truncated importance sampling."""
    rejection_threshold: Annotated[float, Field(gt=1.0)] | None = None
    """Where both engines' log-probabilities are there (as above), a response that, in the geometric
    mean of its tokens, is more than so many times as likely in one as in the other is left out,
    such as 1.05. Default: none is."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus in the loss."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL penalty against the reference. 0 needs no reference model."""
    kl_placement: KlPlacement = KlPlacement.REWARD
    """Where the KL penalty acts: on rewards, or as a term of the loss."""
    kl_estimator: KlEstimator | None = None
    """Which estimator of the KL divergence is used; not K1 in the loss, where its gradient is zero
    on average. Default: K1 in rewards, K2 in the loss; GRPO and DAPO: K3 in the loss."""
    loss_aggregation: LossAggregation | None = None
    """How token losses become one number. Default: TokenMean; for GSPO SequenceMeanTokenMean."""
    epochs_per_batch: Annotated[int, Field(ge=1, le=64)] = 1
    """How often a step trains on its rollouts."""

    default_clip_high: ClassVar[float] = CLIPS[PolicyObjective.CLIPPED][1]
    """The upper clip range of the objective Clipped, where none is given."""
    default_loss_estimator: ClassVar[KlEstimator] = KlEstimator.K2
    """The estimator there, where none is given."""

    @property
    def estimator(self) -> KlEstimator:
        """The estimator of the KL divergence in force."""
        in_loss = self.kl_placement is KlPlacement.LOSS
        default = self.default_loss_estimator if in_loss else KlEstimator.K1
        return default if self.kl_estimator is None else self.kl_estimator

    @property
    def has_kl_loss(self) -> bool:
        """Whether there is a penalty, as a term of the loss."""
        return self.kl_coefficient > 0 and self.kl_placement is KlPlacement.LOSS

    @property
    def kl_reward_coefficient(self) -> float:
        """The weight of the penalty in rewards; 0: there is none."""
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
        if self.objective is PolicyObjective.GSPO:
            return LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN
        return LossAggregation.TOKEN_MEAN

    validations: ClassVar[tuple[Rule, ...]] = (
        Rule(
            holds="self.klPlacement != 'Loss' || !has(self.klEstimator) || "
            "self.klEstimator != 'K1'",
            what="a KL term without effect: the gradient of K1 in a loss is zero on average",
            got="self.klEstimator",
            allowed="K2 or K3",
            do="choose one, or klPlacement Reward",
            field=".klEstimator",
            check=lambda self: violation_if(
                self.kl_placement is KlPlacement.LOSS and self.kl_estimator is KlEstimator.K1, "K1"
            ),
        ),
        Rule(
            holds="!has(self.dualClip) || self.objective == 'Clipped'",
            what="a dual clip of a loss that has none",
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
