"""Training of a reward model on preference pairs."""

from __future__ import annotations

from rlhf_api.spec.presets import RewardModelSettings
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.batches import BatchValue
from rlhf_flow.flow import Flow
from rlhf_flow.losses import BradleyTerry
from rlhf_flow.roles import Roles, ScalarModel


class RewardModel(Algorithm):
    """The Bradley-Terry model of preferences.

    Source: Ouyang et al., Training language models to follow instructions, 2022, section 3.5.

    Args:
        settings: of the manifest.
    """

    def __init__(self, settings: RewardModelSettings) -> None:
        self.loss = BradleyTerry(epochs_per_batch=settings.epochs_per_batch)

    def roles(self) -> Roles:
        """The reward model alone."""
        return {"reward_model": ScalarModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Train on the pairs."""
        flow.reward_model.train(prompts, self.loss)
