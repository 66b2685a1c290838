"""PPO: a critic, generalized advantage estimation, a clipped policy loss."""

from __future__ import annotations

from rlhf_api.spec.presets import PpoSettings
from rlhf_flow.algorithms.policy_gradient import REWARD, JobSettings, PolicyAlgorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import RETURNS, scores_column, valid_column, values_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import ValueLoss
from rlhf_flow.step.operations import Gae, Operation, Whiten
from rlhf_flow.step.roles import Roles, ScalarModel

CRITIC = "critic"


class Ppo(PolicyAlgorithm):
    """Proximal policy optimization.

    Source: Schulman et al., Proximal policy optimization algorithms; HybridFlow, figure 6.

    Args:
        settings: of the manifest.
        job: other settings of the job.
        valid: the column that is true for the rows that count.
    """

    def __init__(
        self, settings: PpoSettings, job: JobSettings, valid: str = valid_column(REWARD)
    ) -> None:
        super().__init__(settings, job, valid)
        self.settings = settings
        self.valid = valid
        self.value_loss = self.critic_loss(CRITIC)
        # Apart from the whitening, because Safe-RLHF inserts operations between the two.
        self.estimates = (
            *self.penalty.on_tokens(scores_column(REWARD)),
            Gae(settings.gamma, settings.gae_lambda, values=values_column(CRITIC)),
        )
        self.whitening = (Whiten(valid),) if settings.whiten_advantages else ()
        self.advantages: tuple[Operation, ...] = (*self.estimates, *self.whitening)

    def roles(self) -> Roles:
        """Actor, critic and reward, and a reference for a KL penalty."""
        return {**super().roles(), CRITIC: ScalarModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate, score, estimate advantages, train critic and actor."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.critic.values(batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.critic.train(batch, self.value_loss)
        # from_step instead of a condition: one graph serves warm-up and all later steps.
        flow.actor.train(batch, self.loss, from_step=self.settings.critic_warmup_steps)

    def critic_loss(self, critic: str, returns: str = RETURNS) -> ValueLoss:
        """The loss of a critic.

        Args:
            critic: its role.
            returns: the column of its targets.
        """
        return ValueLoss(
            valid=self.valid,
            values=values_column(critic),
            clip_range=self.settings.value_clip_range,
            aggregation=self.settings.aggregation,
            epochs_per_batch=self.settings.epochs_per_batch,
            returns=returns,
        )
