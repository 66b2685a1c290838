"""Algorithm: the base of PPO, GRPO and of a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from rlhf_api.plan import RoleKind
from rlhf_flow.fields import PROMPT_FIELDS
from rlhf_flow.flow import BatchValue, Flow
from rlhf_flow.losses import PolicyLoss, ValueLoss


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

    def inputs(self) -> frozenset[str]:
        """Fields of the batch that a step is given."""
        return PROMPT_FIELDS

    def losses(self) -> Mapping[str, PolicyLoss | ValueLoss]:
        """Loss of every trained role; by default those of PPO without any penalty."""
        defaults: dict[RoleKind, PolicyLoss | ValueLoss] = {
            RoleKind.POLICY: PolicyLoss(),
            RoleKind.CRITIC: ValueLoss(),
        }
        return {role: defaults[kind] for role, kind in self.roles().items() if kind in defaults}
