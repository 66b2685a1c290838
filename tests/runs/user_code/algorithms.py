"""An algorithm of a user's own, with an operation of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf_flow import (
    Algorithm,
    BatchValue,
    ClippedLoss,
    Flow,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
    ValueLoss,
)
from rlhf_flow.operations import Custom, Gae, TokenRewards
from rlhf_runtime.dataplane.columns import Column


class Reinforce(Algorithm):
    """The score minus a constant as the advantage of every token."""

    def __init__(self, baseline: float) -> None:
        self.baseline = baseline

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        centre = Custom(
            "algorithms:centred",
            reads=["reward_scores", "response_tokens"],
            writes=["advantages"],
            parameters={"baseline": self.baseline},
        )
        batch |= flow.compute(batch, centre)
        flow.actor.train(batch, ClippedLoss("reward_valid"))


class RewardAndCost(Algorithm):
    """A reward and a cost, each with a critic of its own: the reward's advantages minus a share of
    the cost's."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def roles(self) -> Roles:
        critics = dict.fromkeys(("critic", "cost_critic"), ScalarModel)
        return {
            "actor": LanguageModel,
            **critics,
            "reward": RewardSource,
            "cost": RewardSource,
        }

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch) | flow.cost.score(batch)
        batch |= flow.critic.values(batch) | flow.cost_critic.values(batch)
        batch |= flow.compute(
            batch,
            TokenRewards("reward_scores"),
            Gae(1.0, 0.95, values="critic_values"),
            TokenRewards("cost_scores", rewards="costs"),
            Gae(
                1.0,
                0.95,
                values="cost_critic_values",
                rewards="costs",
                advantages="cost_advantages",
                returns="cost_returns",
            ),
            Custom(
                "algorithms:penalized",
                reads=["advantages", "cost_advantages"],
                writes=["advantages"],
                parameters={"weight": self.weight},
            ),
        )
        flow.critic.train(batch, ValueLoss("reward_valid", "critic_values"))
        flow.cost_critic.train(
            batch, ValueLoss("cost_valid", "cost_critic_values", returns="cost_returns")
        )
        flow.actor.train(batch, ClippedLoss("reward_valid"))


def penalized(columns: Mapping[str, Column], *, weight: float) -> dict[str, Column]:
    """Reward's advantages less the cost's."""
    advantages, costs = columns["advantages"], columns["cost_advantages"]
    values = (advantages.values - np.float32(weight) * costs.values) / np.float32(1 + weight)
    return {"advantages": Column(values, advantages.lengths)}


def centred(columns: Mapping[str, Column], *, baseline: float) -> dict[str, Column]:
    """The operation."""
    lengths = columns["response_tokens"].lengths
    assert lengths is not None
    advantages = columns["reward_scores"].values.astype(np.float32) - np.float32(baseline)
    return {"advantages": Column(np.repeat(advantages, lengths), lengths)}
