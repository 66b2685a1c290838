"""PPO: a critic, generalized advantage estimation, a clipped policy loss."""

from __future__ import annotations

from rlhf_api.spec.presets import PpoSettings
from rlhf_flow.algorithms.policy_algorithm import REWARD, JobFacts, PolicyAlgorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import RETURNS, scores_of, valid_of, values_of
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import ValueLoss
from rlhf_flow.step.operations import Gae, Operation, Whiten
from rlhf_flow.step.roles import Roles, ScalarModel

CRITIC = "critic"


class Ppo(PolicyAlgorithm):
    """Proximal policy optimization.

    During critic warm-up the step is the same, but the actor's training is left out (`from_step`):
    one graph serves all steps.

    Source: Schulman et al., Proximal policy optimization algorithms; HybridFlow, figure 6.

    Args:
        settings: of the manifest.
        job: what else matters of it.
        valid: the field that says which rows count.
    """

    def __init__(self, settings: PpoSettings, job: JobFacts, valid: str = valid_of(REWARD)) -> None:
        super().__init__(settings, job, valid)
        self.settings = settings
        self.valid = valid
        self.value_loss = self.value_loss_of(CRITIC)
        self.estimates = (
            self.penalty.on_tokens(scores_of(REWARD)),
            Gae(settings.gamma, settings.gae_lambda, values=values_of(CRITIC)),
        )
        self.whitening = (Whiten(valid),) if settings.whiten_advantages else ()
        self.advantages: tuple[Operation, ...] = (*self.estimates, *self.whitening)

    def roles(self) -> Roles:
        """Actor, critic and reward, and a reference where there is a KL penalty."""
        return {**super().roles(), CRITIC: ScalarModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer, score, estimate advantages, train critic and actor."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.critic.values(batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.critic.train(batch, self.value_loss)
        flow.actor.train(batch, self.loss, from_step=self.settings.critic_warmup_steps)

    def value_loss_of(self, critic: str, returns: str = RETURNS) -> ValueLoss:
        """The loss of a critic.

        Args:
            critic: its role.
            returns: the field with its targets.
        """
        return ValueLoss(
            valid=self.valid,
            values=values_of(critic),
            clip_range=self.settings.value_clip_range,
            aggregation=self.settings.aggregation,
            epochs_per_batch=self.settings.epochs_per_batch,
            returns=returns,
        )
