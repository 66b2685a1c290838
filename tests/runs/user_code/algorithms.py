"""An algorithm of a user's own, with an operation of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf_flow import Algorithm, RoleKind
from rlhf_flow.flow import BatchValue, Flow
from rlhf_flow.operations import custom
from rlhf_runtime.dataplane.columns import Column


class Reinforce(Algorithm):
    """The score minus a constant as the advantage of every token."""

    def __init__(self, baseline: float) -> None:
        self.baseline = baseline

    def roles(self) -> Mapping[str, RoleKind]:
        return {"actor": RoleKind.POLICY, "reward": RoleKind.REWARD}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        centre = custom(
            "algorithms:centred",
            reads=["scores", "response_tokens"],
            writes=["advantages"],
            parameters={"baseline": self.baseline},
        )
        batch |= flow.compute(batch, centre)
        flow.actor.train(batch)


def centred(columns: Mapping[str, Column], *, baseline: float) -> dict[str, Column]:
    """The operation."""
    lengths = columns["response_tokens"].lengths
    assert lengths is not None
    advantages = columns["scores"].values.astype(np.float32) - np.float32(baseline)
    return {"advantages": Column(np.repeat(advantages, lengths), lengths)}
