"""Evaluation: held-out prompts, answered and scored."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_flow.algorithm import Algorithm
from rlhf_flow.batches import BatchValue
from rlhf_flow.flow import Flow
from rlhf_flow.roles import LanguageModel, RewardSource, Roles


class Evaluation(Algorithm):
    """Answers and their scores; trains nothing.

    Args:
        policy: the role that answers.
        rewards: the roles that score.
        samples: responses per prompt.
        temperature: of sampling; 0 is greedy.
    """

    def __init__(
        self, policy: str, rewards: Sequence[str], samples: int = 1, temperature: float = 0.0
    ) -> None:
        self.policy = policy
        self.rewards = tuple(rewards)
        self.samples = samples
        self.temperature = temperature

    def roles(self) -> Roles:
        """The policy answers, the rewards score."""
        return {self.policy: LanguageModel, **dict.fromkeys(self.rewards, RewardSource)}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer and score."""
        greedy = self.temperature == 0
        batch = getattr(flow, self.policy).generate(
            prompts,
            samples=self.samples,
            temperature=None if greedy else self.temperature,
            greedy=greedy,
        )
        for reward in self.rewards:
            batch |= getattr(flow, reward).score(batch)
