"""PPO: a critic, generalized advantage estimation, a clipped policy loss."""

from __future__ import annotations

from typing import ClassVar

from rlhf_api.spec.algorithm import KlPlacement, PpoSettings
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.batches import BatchValue
from rlhf_flow.fields import (
    ROLLOUT_LOG_PROBS,
    log_probs_of,
    scores_of,
    valid_of,
    values_of,
)
from rlhf_flow.flow import Flow
from rlhf_flow.losses import ClippedLoss, ValueLoss
from rlhf_flow.operations import Gae, Operation, TokenRewards, Whiten
from rlhf_flow.roles import LanguageModel, RewardSource, Roles, ScalarModel


class Ppo(Algorithm):
    """Proximal policy optimization.

    With a single update per step in float32 the generation engine's log-probabilities serve as the
    policy's own, for the ratio and for a KL penalty in the rewards alike: they agree with the
    training engine's within the tolerance that every step reports. Else the actor computes its own
    before the first update, and both uses take those.

    During critic warm-up the step is the same, but the actor's training is left out (`from_step`):
    one graph serves all steps.

    Source: Schulman et al., Proximal policy optimization algorithms; HybridFlow, figure 6.

    Args:
        settings: of the manifest.
        needs_old_log_probs: whether the generation engine's log-probabilities cannot serve as the
            old ones.
    """

    policy: ClassVar = "actor"
    """The role that samples and is trained."""

    def __init__(self, settings: PpoSettings, needs_old_log_probs: bool) -> None:
        self.settings = settings
        self.uses_reference = settings.kl_coefficient > 0
        self.kl_in_loss = self.uses_reference and settings.kl_placement is KlPlacement.LOSS
        self.uses_old_log_probs = needs_old_log_probs
        self.old_log_probs = log_probs_of("actor") if self.uses_old_log_probs else ROLLOUT_LOG_PROBS

    def roles(self) -> Roles:
        """Actor, critic and reward, and a reference where there is a KL penalty."""
        reference = {"reference": LanguageModel} if self.uses_reference else {}
        return {
            "actor": LanguageModel,
            **reference,
            "critic": ScalarModel,
            "reward": RewardSource,
        }

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer, score, estimate advantages, train critic and actor."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        if self.uses_old_log_probs:
            batch |= flow.actor.log_probs(batch)
        if self.uses_reference:
            batch |= flow.reference.log_probs(batch)
        batch |= flow.critic.values(batch)
        batch |= flow.compute(batch, *self._advantages())
        flow.critic.train(batch, self._value_loss())
        flow.actor.train(batch, self._policy_loss(), from_step=self.settings.critic_warmup_steps)

    def _policy_loss(self) -> ClippedLoss:
        return ClippedLoss.from_settings(
            self.settings,
            valid=valid_of("reward"),
            old_log_probs=self.old_log_probs,
            reference_log_probs=log_probs_of("reference") if self.kl_in_loss else None,
        )

    def _value_loss(self) -> ValueLoss:
        return ValueLoss(
            valid=valid_of("reward"),
            values=values_of("critic"),
            clip_range=self.settings.value_clip_range,
            aggregation=self.settings.loss_aggregation,
            epochs_per_batch=self.settings.epochs_per_batch,
        )

    def _advantages(self) -> tuple[Operation, ...]:
        settings = self.settings
        rewards = TokenRewards(
            scores_of("reward"),
            0.0 if self.kl_in_loss else settings.kl_coefficient,
            settings.estimator,
            self.old_log_probs,
            log_probs_of("reference"),
        )
        estimate = Gae(settings.gamma, settings.gae_lambda, values=values_of("critic"))
        if not settings.whiten_advantages:
            return rewards, estimate
        return rewards, estimate, Whiten(valid_of("reward"))
