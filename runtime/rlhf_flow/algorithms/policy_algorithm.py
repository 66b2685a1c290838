"""What steps that train a policy by its gradient share: its log-probabilities and its loss."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from rlhf_api.spec.policy_loss import KlEstimator, PolicyLossSettings
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import ROLLOUT_LOG_PROBS, log_probs_of, valid_of
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import ClippedLoss
from rlhf_flow.step.operations import PenalizedScores, TokenRewards
from rlhf_flow.step.roles import LanguageModel, RewardSource, Roles

ACTOR, REFERENCE, REWARD = "actor", "reference", "reward"


@dataclass(frozen=True)
class JobFacts:
    """What algorithms know of a job beside their own settings."""

    needs_old_log_probs: bool
    """Whether the generation engine's log-probabilities cannot serve as the old ones."""
    prompts_per_step: int
    max_response_tokens: int
    prompt_field: str
    """What a row of data.train names its prompt."""


@dataclass(frozen=True)
class KlPenalty:
    """A penalty on rewards for leaving the reference."""

    coefficient: float
    """Its weight; 0: there is none."""
    estimator: KlEstimator
    policy_log_probs: str
    """The field with the policy's log-probabilities."""
    reference_log_probs: str = log_probs_of(REFERENCE)

    def on_tokens(self, scores: str) -> TokenRewards:
        """The score on the last token, the penalty on every one.

        Args:
            scores: the field with the scores.
        """
        own, reference = self.policy_log_probs, self.reference_log_probs
        return TokenRewards(scores, self.coefficient, self.estimator, own, reference)

    def on_scores(self, scores: str) -> tuple[PenalizedScores, ...]:
        """The whole response's penalty taken off its score, where there is one.

        Args:
            scores: the field with the scores.
        """
        if self.coefficient == 0:
            return ()
        own, reference = self.policy_log_probs, self.reference_log_probs
        return (PenalizedScores(scores, self.coefficient, reference, self.estimator, own),)


class PolicyAlgorithm(Algorithm):
    """An actor that samples and is trained, a reward, and a reference where there is a KL penalty.

    With a single update per step in float32 the generation engine's log-probabilities serve as the
    policy's own, for the ratio and for a KL penalty in the rewards alike: they agree with the
    training engine's within the tolerance that every step reports. Else the actor computes its own
    before the first update, and both uses take those.

    Args:
        settings: of the manifest.
        job: what else matters of it.
        valid: the field that says which rows count.
    """

    def __init__(
        self, settings: PolicyLossSettings, job: JobFacts, valid: str = valid_of(REWARD)
    ) -> None:
        self.uses_reference = settings.kl_coefficient > 0
        self.uses_old_log_probs = job.needs_old_log_probs
        old = log_probs_of(ACTOR) if job.needs_old_log_probs else ROLLOUT_LOG_PROBS
        self.penalty = KlPenalty(settings.kl_reward_coefficient, settings.estimator, old)
        self.loss = ClippedLoss.from_settings(
            settings,
            valid=valid,
            old_log_probs=old,
            reference_log_probs=log_probs_of(REFERENCE) if settings.has_kl_loss else None,
        )

    def roles(self) -> Roles:
        """Actor and reward, and a reference where there is a KL penalty."""
        reference = {REFERENCE: LanguageModel} if self.uses_reference else {}
        return {ACTOR: LanguageModel, **reference, REWARD: RewardSource}

    @abstractmethod
    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """One training step."""

    def with_log_probs(self, flow: Flow, batch: BatchValue) -> BatchValue:
        """The batch, with the log-probabilities that its responses are held against."""
        if self.uses_old_log_probs:
            batch |= flow.actor.log_probs(batch)
        if self.uses_reference:
            batch |= flow.reference.log_probs(batch)
        return batch
