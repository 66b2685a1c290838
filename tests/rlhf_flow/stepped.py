"""Algorithms around step functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf_flow import (
    Algorithm,
    BatchValue,
    CrossEntropy,
    Flow,
    LanguageModel,
    RewardSource,
    Roles,
)

Step = Callable[[Flow, Any], object]


class Stepped(Algorithm):
    """An algorithm around a step function."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        self._step(flow, prompts)


class Costly(Algorithm):
    """A reward and a cost, of which only the reward counts."""

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource, "cost": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch) | flow.cost.score(batch)
        flow.actor.train(batch, CrossEntropy())


def function(columns: object) -> object:
    """Of operations."""
    return columns
