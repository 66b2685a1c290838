"""Evaluation: responses to evaluation prompts, and their scores."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import scores_column, valid_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.operations import PassAtK
from rlhf_flow.step.roles import LanguageModel, RewardSource, Roles


class Evaluation(Algorithm):
    """Generates and scores responses; trains nothing.

    Args:
        policy: the role that generates.
        rewards: the roles that score.
        samples: responses per prompt.
        temperature: of sampling; 0 is greedy.
        pass_at_k: values of k for the metric pass@k, by the first reward.
        pass_score: minimum score of a response that passes.
    """

    def __init__(
        self,
        policy: str,
        rewards: Sequence[str],
        samples: int = 1,
        temperature: float = 0.0,
        pass_at_k: Sequence[int] = (),
        pass_score: float = 1.0,
    ) -> None:
        self.policy = policy
        self.rewards = tuple(rewards)
        self.samples = samples
        self.temperature = temperature
        # The threshold is of one reward's scale; all operations would write one column, passed.
        self.passing = tuple(
            PassAtK(scores_column(reward), valid_column(reward), tuple(pass_at_k), pass_score)
            for reward in self.rewards[:1]
            if pass_at_k
        )

    def roles(self) -> Roles:
        """The policy and the rewards."""
        return {self.policy: LanguageModel, **dict.fromkeys(self.rewards, RewardSource)}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate and score."""
        greedy = self.temperature == 0
        batch = getattr(flow, self.policy).generate(
            prompts,
            samples=self.samples,
            # A generate call refuses a temperature beside greedy=True.
            temperature=None if greedy else self.temperature,
            greedy=greedy,
        )
        for reward in self.rewards:
            batch |= getattr(flow, reward).score(batch)
        if self.passing:
            flow.compute(batch, *self.passing)
