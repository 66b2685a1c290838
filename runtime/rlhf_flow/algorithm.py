"""Algorithm: the base of PPO, GRPO and of a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rlhf_flow.batches import BatchValue
from rlhf_flow.flow import Flow
from rlhf_flow.roles import Roles


class Algorithm(ABC):
    """Roles and a step over them.

    The step is traced to a graph before a job starts and then run once per training step.
    Conditions in it may depend on the algorithm's own settings, never on values of a batch. A class
    of the user's own gets the manifest's `custom.parameters` as keyword arguments of its
    constructor.
    """

    @abstractmethod
    def roles(self) -> Roles:
        """What every role is, by name, such as {"actor": LanguageModel}."""

    @abstractmethod
    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """One training step on a batch of prompts, with answers or as pairs where the data have
        them."""
