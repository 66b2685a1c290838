"""GRPO, RLOO, OPO and REINFORCE++: a policy gradient without a critic."""

from __future__ import annotations

from rlhf_api.spec.policy_loss import PolicyLossSettings
from rlhf_flow.algorithms.estimators import estimator
from rlhf_flow.algorithms.policy_algorithm import REWARD, JobFacts, PolicyAlgorithm
from rlhf_flow.batches import BatchValue
from rlhf_flow.fields import scores_of, valid_of
from rlhf_flow.flow import Flow


class PolicyGradient(PolicyAlgorithm):
    """Advantages from scores alone: which ones is the algorithm's estimator.

    Sources: GRPO, DeepSeekMath (arXiv 2402.03300), section 4.1; Dr.GRPO (arXiv 2503.20783); RLOO
    (arXiv 2402.14740); OPO (arXiv 2505.23585); REINFORCE++ (arXiv 2501.03262).

    Args:
        settings: of the manifest.
        job: what else matters of it.
        valid: the field that says which rows count.
    """

    def __init__(
        self, settings: PolicyLossSettings, job: JobFacts, valid: str = valid_of(REWARD)
    ) -> None:
        super().__init__(settings, job, valid)
        self.advantages = estimator(settings, scores_of(REWARD), valid, self.penalty)

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer, score, estimate advantages, train."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.actor.train(batch, self.loss)
