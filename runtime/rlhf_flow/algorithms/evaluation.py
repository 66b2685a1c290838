"""Evaluation: held-out prompts, answered and scored."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import RoleKind
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.flow import BatchValue, Flow


class Evaluation(Algorithm):
    """Answers and their scores; trains nothing.

    Args:
        samples: responses per prompt.
        temperature: of sampling; 0 is greedy.
    """

    def __init__(self, samples: int = 1, temperature: float = 0.0) -> None:
        self.samples = samples
        self.temperature = temperature

    def roles(self) -> Mapping[str, RoleKind]:
        """The actor answers, the reward scores."""
        return {"actor": RoleKind.POLICY, "reward": RoleKind.REWARD}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer and score."""
        greedy = self.temperature == 0
        batch = flow.actor.generate(
            prompts,
            samples=self.samples,
            temperature=None if greedy else self.temperature,
            greedy=greedy,
        )
        batch |= flow.reward.score(batch)
