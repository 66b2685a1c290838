"""GRPO, RLOO, OPO and REINFORCE++: a policy gradient without a critic."""

from __future__ import annotations

from rlhf_api.spec.policy_loss import PolicyLossSettings
from rlhf_api.spec.presets import (
    GrpoSettings,
    OpoSettings,
    ReinforcePlusPlusSettings,
    RlooSettings,
)
from rlhf_flow.algorithms.policy_algorithm import REWARD, JobSettings, KlPenalty, PolicyAlgorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import scores_column, valid_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.operations import GroupAdvantages, GroupBaseline, Operation, RewardsToGo, Whiten


class PolicyGradient(PolicyAlgorithm):
    """Advantages from scores alone, by the estimator of the algorithm.

    Sources: GRPO, DeepSeekMath (arXiv 2402.03300), section 4.1; Dr.GRPO (arXiv 2503.20783); RLOO
    (arXiv 2402.14740); OPO (arXiv 2505.23585); REINFORCE++ (arXiv 2501.03262).

    Args:
        settings: of the manifest.
        job: other settings of the job.
        valid: the column that is true for the rows that count.
    """

    def __init__(
        self, settings: PolicyLossSettings, job: JobSettings, valid: str = valid_column(REWARD)
    ) -> None:
        super().__init__(settings, job, valid)
        self.advantages = estimator(settings, scores_column(REWARD), valid, self.penalty)

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate, score, estimate advantages, train."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.actor.train(batch, self.loss)


def estimator(
    settings: PolicyLossSettings,
    scores: str,
    valid: str,
    penalty: KlPenalty,
) -> tuple[Operation, ...]:
    """The operations from a score per response to advantages of its tokens.

    Args:
        settings: of the algorithm.
        scores: the column of scores.
        valid: the column that is true for the rows that count.
        penalty: the KL penalty on rewards.
    """
    match settings:
        case ReinforcePlusPlusSettings(group_baseline=False):
            rewards = penalty.on_tokens(scores)
            return rewards, RewardsToGo(settings.gamma), Whiten(valid)
    penalties = penalty.on_scores(scores)
    return *penalties, *_compared(settings, penalties[-1].penalized if penalties else scores, valid)


def _compared(settings: PolicyLossSettings, scores: str, valid: str) -> tuple[Operation, ...]:
    match settings:
        case GrpoSettings():
            return (GroupAdvantages(scores, valid, settings.normalize_by_std),)
        case RlooSettings():
            return (GroupAdvantages(scores, valid, False, GroupBaseline.LEAVE_ONE_OUT),)
        case OpoSettings():
            return (GroupAdvantages(scores, valid, False, GroupBaseline.LENGTH_WEIGHTED),)
        case ReinforcePlusPlusSettings(group_baseline=True):
            return (GroupAdvantages(scores, valid, False), Whiten(valid))
    raise AssertionError(f"{type(settings).__name__} has another step")
