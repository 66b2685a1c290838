"""Supervised training of a policy on reference answers: the warm start."""

from __future__ import annotations

from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import CrossEntropy
from rlhf_flow.step.roles import LanguageModel, Roles


class Supervised(Algorithm):
    """Cross entropy on reference answers, which are the response tokens of the data.

    Args:
        policy: the trained role.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def roles(self) -> Roles:
        """The policy alone."""
        return {self.policy: LanguageModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Train on the answers."""
        getattr(flow, self.policy).train(prompts, CrossEntropy())
