"""Safe-RLHF: PPO with a learned multiplier that limits the mean cost to a budget."""

from __future__ import annotations

from rlhf_api.spec.presets import SafeRlhfSettings
from rlhf_flow.algorithms.policy_gradient import REWARD, JobSettings
from rlhf_flow.algorithms.ppo import Ppo
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import scores_column, valid_column, values_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import CrossEntropy, Loss
from rlhf_flow.step.operations import (
    BothValid,
    Gae,
    LagrangeMultiplier,
    PenalizedAdvantages,
    TokenRewards,
)
from rlhf_flow.step.roles import RewardSource, Roles, ScalarModel

COST, COST_CRITIC, VALID = "cost", "cost_critic", "valid"


class SafeRlhf(Ppo):
    """PPO with a cost, a cost critic, a multiplier, and a loss on rows of pretraining.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), section 3.2 and appendix B; HybridFlow,
    figure 6.

    Args:
        settings: of the manifest.
        job: other settings of the job.
    """

    def __init__(self, settings: SafeRlhfSettings, job: JobSettings) -> None:
        super().__init__(settings, job, VALID)
        self.pretraining_weight = settings.pretraining_weight
        self.cost_value_loss = self.critic_loss(COST_CRITIC, returns="cost_returns")
        self.advantages = (
            BothValid(valid_column(REWARD), valid_column(COST), VALID),
            *self.estimates,
            # Without a KL penalty: the rewards have it, and it must not count twice.
            TokenRewards(scores_column(COST), rewards="costs"),
            Gae(
                settings.gamma,
                settings.gae_lambda,
                values=values_column(COST_CRITIC),
                rewards="costs",
                advantages="cost_advantages",
                returns="cost_returns",
            ),
            # Before the advantages that it weights, so that they use this step's value.
            LagrangeMultiplier(
                scores_column(COST),
                valid_column(COST),
                settings.cost_budget,
                settings.multiplier_learning_rate,
                settings.initial_multiplier,
                settings.max_multiplier,
            ),
            PenalizedAdvantages("cost_advantages"),
            # Last, so that the weighted difference has variance 1, whatever the multiplier is.
            *self.whitening,
        )

    def roles(self) -> Roles:
        """PPO's, a cost and its critic."""
        return {**super().roles(), COST: RewardSource, COST_CRITIC: ScalarModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate, score reward and cost, weigh them, train critics and actor."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.cost.score(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.critic.values(batch)
        batch |= flow.cost_critic.values(batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.critic.train(batch, self.value_loss)
        flow.cost_critic.train(batch, self.cost_value_loss)
        warmup = self.settings.critic_warmup_steps
        flow.actor.train(batch, self.loss, *self.pretraining_loss(flow), from_step=warmup)

    def pretraining_loss(self, flow: Flow) -> tuple[tuple[BatchValue, Loss], ...]:
        """The ptx loss with its rows; nothing if its weight is 0."""
        if self.pretraining_weight == 0:
            return ()
        return ((flow.pretraining(), CrossEntropy(self.pretraining_weight)),)
