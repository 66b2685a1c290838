"""Makes the scorer of a reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.applicable_samples import PartialScorer, RewardScorer
from rlhf_runtime.rewards.environment_scorer import EnvironmentScorer
from rlhf_runtime.rewards.pool import VerifierPool

if TYPE_CHECKING:
    from rlhf_runtime.rewards.service_scorer import ServiceScorer


def make_scorer(reward: RewardSpec) -> RewardScorer:
    """Start the scorer of a reward by a function, a service or the environment.

    Raises:
        InvalidReward, RewardError: its settings cannot be used here.
    """
    scorer: RewardScorer
    if reward.environment is not None:
        scorer = EnvironmentScorer(reward)
    else:
        scorer = VerifierPool(reward) if reward.function is not None else service_scorer(reward)
    return PartialScorer(reward, scorer) if reward.is_partial else scorer


def service_scorer(reward: RewardSpec) -> ServiceScorer:
    """Start the scorer of a reward by a service.

    Raises:
        InvalidReward, RewardError: its settings cannot be used here.
    """
    # Only jobs with a service wait for its client.
    from rlhf_runtime.rewards.http_scorer import HTTPScorer
    from rlhf_runtime.rewards.judge_scorer import JudgeScorer

    return JudgeScorer(reward) if reward.judge is not None else HTTPScorer(reward)
