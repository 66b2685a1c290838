"""Losses that train roles: arguments of a train call. Data only; the runtime has the numerics.

The columns that a loss reads follow from its settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_api.spec.policy_loss import (
    KlEstimator,
    LossAggregation,
    PolicyLossSettings,
    PolicyObjective,
)
from rlhf_flow.errors import FlowError
from rlhf_flow.step import columns
from rlhf_flow.step.checks import check, check_member, checked_settings, is_count, is_number
from rlhf_flow.step.column_settings import (
    ColumnSettings,
    Credits,
    LogProbs,
    MaybeLogProbs,
    MaybeValid,
    OwnLogProbs,
    OwnValues,
    Preference,
    Valid,
)
from rlhf_flow.step.operations.rewards import check_kl_penalty

_SEQUENCES = (columns.PROMPT_TOKENS, columns.RESPONSE_TOKENS)


class _EpochLoss(ColumnSettings):
    """A loss that trains on a batch in one or several epochs."""

    leaves_out_rows: ClassVar[bool] = False
    """True if the loss may count no row of a batch."""

    epochs_per_batch: int

    def __post_init__(self) -> None:
        super().__post_init__()
        epochs = self.epochs_per_batch
        owner = type(self).__name__
        check(owner, "epochs_per_batch", epochs, is_count(epochs), "a number of at least 1")

    def updates(self, per_epoch: int) -> int:
        """Optimizer steps on one batch.

        Args:
            per_epoch: mini-batches of a batch.
        """
        return per_epoch * self.epochs_per_batch


class _RowMaskedLoss(_EpochLoss):
    """A loss over the tokens of rows that count."""

    leaves_out_rows = True

    valid: Valid
    finished: MaybeValid

    @property
    def counted(self) -> tuple[str, ...]:
        """Columns that are all true for the rows that count."""
        return (self.valid,) if self.finished is None else (self.valid, self.finished)

    def unused(self) -> frozenset[str]:
        """The column of unmasked rows, if all may count."""
        return frozenset({"finished"}) if self.finished is None else frozenset()


@checked_settings
@dataclass(frozen=True)
class ClippedLoss(_RowMaskedLoss):
    """The policy-gradient loss of PPO and GRPO, or of GSPO or CISPO, by its objective.

    The settings have the meaning of those of PolicyLossSettings.

    Raises:
        FlowError: a KL term without a reference, or by an estimator without a gradient.
    """

    # The generation engine's log-probabilities are read even if the old ones are the trainer's: the
    # importance weights, the rejection and the report of both engines' difference need them.
    always: ClassVar[tuple[str, ...]] = (*_SEQUENCES, columns.ROLLOUT_LOG_PROBS)
    compares_with_sampling = True

    valid: Valid
    """The column that is true for the rows that count, such as reward_valid."""
    objective: PolicyObjective = PolicyObjective.CLIPPED
    clip_range: float = 0.2
    clip_range_high: float = 0.2
    dual_clip: float | None = None
    importance_cap: float = 2.0
    """Upper bound of the importance weights that correct for the generation engine, if the old
    log-probabilities are not its own."""
    rejection_threshold: float | None = None
    """Drop a response whose mean per-token ratio of trainer to generation engine (geometric mean),
    or its inverse, exceeds this. Needs the training engine's old log-probabilities. None: keep
    all."""
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    """Weight of a KL term in the loss. A penalty in the rewards is separate: `TokenRewards`."""
    kl_estimator: KlEstimator | None = None
    """Estimator of the KL term; required with one. A manifest's settings choose it."""
    aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    epochs_per_batch: int = 1
    old_log_probs: OwnLogProbs = columns.ROLLOUT_LOG_PROBS
    """The column of log-probabilities under the policy that sampled, computed by the generation
    engine or by the training engine."""
    reference_log_probs: MaybeLogProbs = None
    """The column of the reference's log-probabilities; needed for a KL term."""
    advantages: Credits = columns.ADVANTAGES
    """The column of every token's advantage."""
    finished: MaybeValid = None
    """A column that is true for the rows that the loss counts, in addition to `valid`. If
    rollout.onStop masks responses, a train call sets it. None: no further condition."""

    def __post_init__(self) -> None:
        self._check()
        # Before the names of columns, whose check would refuse a missing reference less clearly.
        if self.kl_coefficient > 0:
            check_kl_penalty("ClippedLoss", self.reference_log_probs, self.kl_estimator)
        super().__post_init__()
        # The gradient of log p has mean 0 under p, so K1 adds only noise.
        if self.kl_coefficient > 0 and self.kl_estimator is KlEstimator.K1:
            raise FlowError(
                "a KL term without effect: got the estimator K1, whose gradient is zero on average "
                "in a loss, allowed K2 and K3_CORRECTED (gradient of KL(policy, reference)), K3; "
                "choose one, or put the penalty into the rewards by "
                "TokenRewards(kl_coefficient=...)"
            )

    def unused(self) -> frozenset[str]:
        """The reference's column, without a KL term."""
        reference = set() if self.kl_coefficient > 0 else {"reference_log_probs"}
        return super().unused() | reference

    def _check(self) -> None:
        owner = type(self).__name__
        check_member(owner, "objective", self.objective, PolicyObjective)
        check_member(owner, "aggregation", self.aggregation, LossAggregation)
        if self.kl_estimator is not None:
            check_member(owner, "kl_estimator", self.kl_estimator, KlEstimator)
        for name in ("clip_range", "clip_range_high", "entropy_coefficient", "kl_coefficient"):
            value = getattr(self, name)
            check(owner, name, value, is_number(value), "a number of at least 0")
        # Below 1 it would bound ratios that the clip range allows.
        is_clip = self.dual_clip is None or (is_number(self.dual_clip) and self.dual_clip > 1)
        check(owner, "dual_clip", self.dual_clip, is_clip, "a number above 1, or None")
        is_used = self.dual_clip is None or self.objective is PolicyObjective.CLIPPED
        check(owner, "dual_clip", self.dual_clip, is_used, "none but for the objective CLIPPED")
        # Weights are about 1 where the engines agree; a cap below would scale every gradient down.
        cap = self.importance_cap
        check(owner, "importance_cap", cap, is_number(cap, minimum=1), "a number of at least 1")
        threshold = self.rejection_threshold
        is_ratio = threshold is None or (is_number(threshold) and threshold > 1)
        check(owner, "rejection_threshold", threshold, is_ratio, "a number above 1, or None")

    @classmethod
    def from_settings(
        cls,
        settings: PolicyLossSettings,
        *,
        valid: str,
        old_log_probs: str,
        reference_log_probs: str | None = None,
    ) -> ClippedLoss:
        """The loss that a manifest's settings describe.

        Args:
            settings: of the algorithm.
            valid: the column that is true for the rows that count.
            old_log_probs: the column of log-probabilities of the policy that sampled.
            reference_log_probs: the column of the reference's, for a KL term. None: no KL term in
                the loss, whatever the settings say.
        """
        return cls(
            valid=valid,
            objective=settings.objective,
            clip_range=settings.clip_low,
            clip_range_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            importance_cap=settings.importance_cap,
            rejection_threshold=settings.rejection_threshold,
            entropy_coefficient=settings.entropy_coefficient,
            # The same coefficient is in force for a penalty in the rewards, which the loss must not
            # repeat.
            kl_coefficient=0.0 if reference_log_probs is None else settings.kl_coefficient,
            kl_estimator=settings.estimator,
            aggregation=settings.aggregation,
            epochs_per_batch=settings.epochs_per_batch,
            old_log_probs=old_log_probs,
            reference_log_probs=reference_log_probs,
        )


@checked_settings
@dataclass(frozen=True)
class ValueLoss(_RowMaskedLoss):
    """Half the squared error of the values, clipped or not."""

    always: ClassVar[tuple[str, ...]] = _SEQUENCES

    valid: Valid
    """The column that is true for the rows that count, such as reward_valid."""
    values: OwnValues
    """The column of the critic's values before the update, such as critic_values."""
    clip_range: float | None = None
    """Maximum distance of new values from the old ones. None: no clip."""
    aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    epochs_per_batch: int = 1
    returns: Credits = columns.RETURNS
    """The column of the targets."""
    finished: MaybeValid = None
    """See ClippedLoss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, clip = type(self).__name__, self.clip_range
        check_member(owner, "aggregation", self.aggregation, LossAggregation)
        is_clip = clip is None or is_number(clip)
        check(owner, "clip_range", clip, is_clip, "a number of at least 0, or None")


@checked_settings
@dataclass(frozen=True)
class CrossEntropy(ColumnSettings):
    """Negative log-likelihood of the response tokens, averaged over the batch, in one update:
    supervised training on reference answers. As an auxiliary loss the mean is over a mini-batch:
    ptx of InstructGPT and Safe-RLHF.

    Source: Ouyang et al., Training language models to follow instructions, 2022, equation 2.
    """

    always: ClassVar[tuple[str, ...]] = _SEQUENCES
    leaves_out_rows: ClassVar[bool] = False

    weight: float = 1.0
    """Factor of the loss in a sum of losses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, weight = type(self).__name__, self.weight
        check(owner, "weight", weight, is_number(weight) and weight > 0, "a number above 0")

    @property
    def counts_tokens(self) -> bool:
        """True: it is a mean over tokens."""
        # The base class would derive False, as no column that it reads has a number per token.
        return True

    def updates(self, per_epoch: int) -> int:
        """Optimizer steps on one batch: one."""
        # It is never cut into mini-batches.
        return 1


@checked_settings
@dataclass(frozen=True)
class BradleyTerry(_EpochLoss):
    """Negative log-probability that the chosen response beats the rejected one to the same prompt,
    averaged over all pairs of a mini-batch: training of a reward model.

    A response's score is the output of the scalar head at its last token, whatever a response mask
    says; the probability is the sigmoid of the difference of two scores.

    Source: Ouyang et al., Training language models to follow instructions, 2022, section 3.5.
    """

    always: ClassVar[tuple[str, ...]] = _SEQUENCES

    preference: Preference = columns.PREFERENCE
    """The column that is 1 for chosen responses and -1 for rejected ones."""
    epochs_per_batch: int = 1


@checked_settings
@dataclass(frozen=True)
class Dpo(_EpochLoss):
    """Direct preference optimization: negative log-probability that the chosen response beats the
    rejected one to the same prompt, averaged over all pairs of a mini-batch.

    A response's implicit reward is beta x (log-probability under the policy - log-probability under
    the reference), summed over its tokens; the probability is the sigmoid of the difference of two
    rewards. Both log-probabilities are as log_probs computes them. Rows that are in no pair are not
    run at all.

    Source: Rafailov et al., Direct preference optimization (arXiv 2305.18290), equation 7.
    """

    always: ClassVar[tuple[str, ...]] = _SEQUENCES
    compares_with_sampling = True

    reference_log_probs: LogProbs
    """The column of log-probabilities under the reference, such as reference_log_probs."""
    beta: float = 0.1
    """Strength of the pull towards the reference."""
    label_smoothing: float = 0.0
    """Probability that a preference is inverted.

    Source: Mitchell, A note on DPO with noisy preferences, 2023."""
    preference: Preference = columns.PREFERENCE
    """The column that is 1 for chosen responses and -1 for rejected ones."""
    epochs_per_batch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        owner, beta, smoothing = type(self).__name__, self.beta, self.label_smoothing
        check(owner, "beta", beta, is_number(beta) and beta > 0, "a number above 0")
        # At 0.5 a preference says nothing; above, its inverse.
        is_doubt = is_number(smoothing) and smoothing < 0.5
        check(owner, "label_smoothing", smoothing, is_doubt, "a number from 0 to below 0.5")


Loss = ClippedLoss | ValueLoss | CrossEntropy | BradleyTerry | Dpo
