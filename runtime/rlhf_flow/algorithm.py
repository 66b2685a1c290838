"""Algorithm: the base of PPO, GRPO and of a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from rlhf_api.plan import RoleKind
from rlhf_flow.flow import BatchValue, Flow


class Algorithm(ABC):
    """Roles and a step over them.

    The step is traced to a graph before a job starts and then run once per training step.
    Conditions in it may depend on the algorithm's own settings, never on values of a batch. A class
    of the user's own gets the manifest's `custom.parameters` as keyword arguments of its
    constructor.
    """

    @abstractmethod
    def roles(self) -> Mapping[str, RoleKind]:
        """Kind of every role by name; `actor` is the policy that generates."""

    @abstractmethod
    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """One training step on a batch of prompts."""
