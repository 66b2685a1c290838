"""Custom algorithms and operations of a user."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from rlhf_flow import (
    Algorithm,
    BatchValue,
    BestAgainstWorst,
    BradleyTerry,
    ClippedLoss,
    CrossEntropy,
    Custom,
    Dpo,
    Flow,
    GroupAdvantages,
    Kind,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
    Scope,
)
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.dataplane.protocol import Protocol

ROWS = 64
"""Rows of a step: eight samples of eight prompts."""


class Reinforce(Algorithm):
    """REINFORCE: the score minus a constant is the advantage of every token."""

    # One rank computes with all rows, so that the operation can count them.

    def __init__(self, baseline: float) -> None:
        self.baseline = baseline

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        centre = Custom(
            f"{__name__}:centred",
            reads=["reward_scores", "response_tokens"],
            writes=["advantages"],
            parameters={"baseline": self.baseline, "rows": ROWS},
            protocol=f"{__name__}:ON_FIRST",
        )
        batch |= flow.compute(batch, centre)
        flow.actor.train(batch, ClippedLoss("reward_valid"))


class Rloo(Algorithm):
    """REINFORCE with a leave-one-out baseline."""

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, LEAVE_ONE_OUT)
        flow.actor.train(batch, ClippedLoss("reward_valid"))


class Refill(Algorithm):
    """DAPO's dynamic sampling: GRPO on `prompts` prompts whose responses differ in score."""

    def __init__(self, prompts: int) -> None:
        how = {"parameters": {"prompts": prompts}, "scope": Scope.BATCH}
        reads = ["reward_scores", "prompt_id"]
        self.enough = Custom(f"{__name__}:enough", reads, ["enough"], **how)
        self.mixed = Custom(
            f"{__name__}:mixed", reads, ["mixed"], **how, kinds={"mixed": Kind.TRUTH}
        )

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        def sample(fresh: BatchValue) -> BatchValue:
            batch = flow.actor.generate(fresh)
            batch |= flow.reward.score(batch)
            flow.save(flow.compute(batch, KEPT), "responses")
            return batch

        batch = flow.repeat(sample, until=self.enough, max_rounds=4, expected_rounds=2)
        batch |= flow.compute(batch, self.mixed, GroupAdvantages("reward_scores", "mixed"))
        flow.actor.train(batch, ClippedLoss("mixed"))


class CatchUp(Algorithm):
    """DPO in two epochs with a reference that copies weights every other step."""

    def roles(self) -> Roles:
        models = {"actor": LanguageModel, "reference": LanguageModel}
        return {**models, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts, temperature=1.2)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, BestAgainstWorst("reward_scores", "reward_valid"))
        batch |= flow.reference.log_probs(batch)
        flow.actor.train(batch, Dpo("reference_log_probs", beta=0.2, epochs_per_batch=2))
        flow.every(2, lambda: flow.reference.copy_weights_from(flow.actor))
        flow.save(flow.compute(batch, AVERAGE), "average")
        for role in (flow.actor, flow.reference):
            flow.reward.score(role.generate(prompts, samples=1, greedy=True))


class Distill(Algorithm):
    """The actor learns responses of a frozen teacher."""

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "teacher": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        taught = flow.teacher.generate(prompts, samples=2)
        flow.actor.train(taught, CrossEntropy())
        flow.reward.score(flow.actor.generate(prompts, samples=1, greedy=True))


class Imitate(Algorithm):
    """Supervised training on the data's answers."""

    def roles(self) -> Roles:
        return {"student": LanguageModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        flow.student.train(prompts, CrossEntropy())


class Compare(Algorithm):
    """A reward model learns from pairs."""

    def roles(self) -> Roles:
        return {"reward_model": ScalarModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        flow.reward_model.train(prompts, BradleyTerry())


AVERAGE = Custom(
    f"{__name__}:average",
    reads=["reward_scores"],
    writes=["lines"],
    scope=Scope.BATCH,
    keeps={"steps": 0, "average": 0.0},
)


def average(columns: Mapping[str, Column], *, state: dict[str, float]) -> dict[str, Column]:
    """Mean of all scores so far, with the number of steps."""
    scores = columns["reward_scores"].values
    state["steps"] += 1
    state["average"] += (float(scores.mean(dtype=float)) - state["average"]) / state["steps"]
    return {"lines": pack_texts([json.dumps(state), *[""] * (len(scores) - 1)])}


LEAVE_ONE_OUT = Custom(
    f"{__name__}:leave_one_out",
    reads=["reward_scores", "prompt_id", "response_tokens"],
    writes=["advantages"],
)


KEPT = Custom(
    f"{__name__}:lines", reads=["record", "response_text", "reward_scores"], writes=["lines"]
)


def lines(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Lines of JSON, one per response."""
    texts = zip(columns["record"].texts(), columns["response_text"].texts(), strict=True)
    scores = columns["reward_scores"].values.tolist()
    rows = [
        {**json.loads(record)["record"], "response": text, "score": score}
        for (record, text), score in zip(texts, scores, strict=True)
    ]
    return {"lines": pack_texts(list(map(json.dumps, rows)))}


def leave_one_out(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Score minus the mean of the prompt's other scores."""
    scores = columns["reward_scores"].values
    _, group = np.unique(columns["prompt_id"].values, return_inverse=True)
    others = np.bincount(group, scores)[group] - scores
    return _spread(columns, scores - others / (np.bincount(group)[group] - 1))


def mixed(columns: Mapping[str, Column], *, prompts: int) -> dict[str, Column]:
    """True for rows of the first `prompts` prompts whose scores differ."""
    _, first, group = np.unique(columns["prompt_id"].values, return_index=True, return_inverse=True)
    scores = columns["reward_scores"].values
    differ = np.array([len(set(scores[group == number])) > 1 for number in range(len(first))])
    in_order = np.argsort(first)
    chosen = in_order[differ[in_order]][:prompts]
    return {"mixed": Column(np.isin(group, chosen))}


def enough(columns: Mapping[str, Column], *, prompts: int) -> dict[str, Column]:
    """True if scores differ for `prompts` prompts."""
    rows, ids = mixed(columns, prompts=prompts)["mixed"].values, columns["prompt_id"].values
    return {"enough": Column(np.full(len(ids), len(np.unique(ids[rows])) >= prompts))}


def _spread(columns: Mapping[str, Column], advantages: np.ndarray) -> dict[str, Column]:
    """Repeat the advantage of a response for its tokens."""
    lengths = columns["response_tokens"].lengths
    assert lengths is not None
    return {"advantages": Column(np.repeat(advantages.astype(np.float32), lengths), lengths)}


ON_FIRST = Protocol(lambda at: Slice(0, 1), lambda at: at.rank == 0)


def centred(columns: Mapping[str, Column], *, baseline: float, rows: int) -> dict[str, Column]:
    """Score minus baseline."""
    scores = columns["reward_scores"].values
    if len(scores) != rows:
        raise ValueError(f"the protocol gave {len(scores)} rows")
    return _spread(columns, scores - np.float32(baseline))
