"""Supervised training of the actor on reference answers: the warm start."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import RoleKind
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.flow import BatchValue, Flow
from rlhf_flow.losses import CrossEntropy


class Supervised(Algorithm):
    """Cross entropy on answers: the response tokens of its rows are the reference answers."""

    def roles(self) -> Mapping[str, RoleKind]:
        """The actor alone."""
        return {"actor": RoleKind.POLICY}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Train on the answers."""
        flow.actor.train(prompts, CrossEntropy())
