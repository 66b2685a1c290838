"""Which calls read a response mask, although nobody names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow import (
    Algorithm,
    BatchValue,
    BradleyTerry,
    ClippedLoss,
    CrossEntropy,
    Dpo,
    Flow,
    Kind,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
    Scope,
    ValueLoss,
)
from rlhf_flow.errors import FlowError
from rlhf_flow.step.losses import Loss
from rlhf_flow.step.operations import (
    AboveBaseline,
    AdaptiveKlCoefficient,
    AddTurnAdvantages,
    AddTurnRewards,
    BestAgainstWorst,
    BothValid,
    Custom,
    EnoughGroups,
    Gae,
    GroupAdvantages,
    LagrangeMultiplier,
    MixedGroups,
    Operation,
    OverlongPenalty,
    PairLines,
    PassAtK,
    PenalizedAdvantages,
    PenalizedScores,
    RewardsToGo,
    TokenRewards,
    WeightedSum,
    Whiten,
)
from rlhf_flow.trace.graph import Graph
from rlhf_flow.trace.tracing import trace

SCORES = ("reward_scores", "reward_valid")
MASK = Custom(f"{__name__}:own", ["response_tokens"], ["response_mask"], scope=Scope.ROW)
TOKEN_OPERATIONS: tuple[Operation, ...] = (
    TokenRewards("reward_scores"),
    AddTurnRewards(turn_rewards="returns"),
    AddTurnAdvantages("reward_valid", turn_rewards="returns"),
    Gae(1.0, 1.0, values="critic_values"),
    Whiten("reward_valid"),
    GroupAdvantages(*SCORES),
    RewardsToGo(),
    AboveBaseline(*SCORES),
    AdaptiveKlCoefficient(0.1, 6.0, "actor_log_probs", KlEstimator.K1),
    PenalizedScores("reward_scores", 0.1, "actor_log_probs", KlEstimator.K1),
    PenalizedAdvantages("returns", "weight"),
)
ROW_OPERATIONS: tuple[Operation, ...] = (
    OverlongPenalty("reward_scores", 8, 4),
    MixedGroups(*SCORES),
    EnoughGroups("reward_valid", 1),
    BothValid("reward_valid", "finished"),
    PassAtK(*SCORES),
    BestAgainstWorst(*SCORES),
    PairLines("reward_scores"),
    LagrangeMultiplier(*SCORES),
    WeightedSum({"reward_scores": 1.0}, scores="total_scores", valid="total_valid"),
    Custom(f"{__name__}:own", ["advantages"], ["advantages"]),
)
TOKEN_LOSSES: tuple[tuple[str, Loss], ...] = (
    ("actor", ClippedLoss("reward_valid")),
    ("actor", CrossEntropy()),
    ("actor", Dpo("actor_log_probs")),
    ("critic", ValueLoss("reward_valid", "critic_values")),
)


def own(columns: object) -> object:
    """A function of the user's own."""
    return columns


class Masked(Algorithm):
    """A batch with all that operations and losses read, and perhaps a mask."""

    def __init__(self, use: Callable[[Flow, Any], object], *mask: Operation) -> None:
        self._use, self._mask = use, mask

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "critic": ScalarModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        if self._mask:
            batch |= flow.compute(batch, *self._mask)
        batch |= flow.reward.score(batch)
        batch |= flow.actor.log_probs(batch) | flow.critic.values(batch)
        multiplier = LagrangeMultiplier(*SCORES, multiplier="weight")
        batch |= flow.compute(batch, BestAgainstWorst(*SCORES), multiplier)
        gae = Gae(1.0, 1.0, values="critic_values")
        batch |= flow.compute(batch, TokenRewards("reward_scores"), gae)
        self._use(flow, batch)


def readers(graph: Graph) -> list[str]:
    return [call.id for call in graph.calls if "response_mask" in call.reads]


def computing(*operations: Any) -> Callable[[Flow, Any], object]:
    return lambda flow, batch: flow.compute(batch, *operations)


def training(role: str, loss: Any) -> Callable[[Flow, Any], object]:
    return lambda flow, batch: getattr(flow, role).train(batch, loss)


def test_every_operation_and_loss_is_one_of_either_kind() -> None:
    operations = {type(each) for each in (*TOKEN_OPERATIONS, *ROW_OPERATIONS)}
    assert operations == set(get_args(Operation))
    losses = {type(loss) for _, loss in TOKEN_LOSSES} | {BradleyTerry}
    assert losses == set(get_args(Loss))


@pytest.mark.parametrize("operation", TOKEN_OPERATIONS, ids=lambda each: type(each).__name__)
def test_operations_on_tokens_read_the_mask_of_a_batch_that_has_one(operation: Operation) -> None:
    assert readers(trace(Masked(computing(operation), MASK))) == ["compute#3", "compute#4"]
    assert readers(trace(Masked(computing(operation)))) == []


@pytest.mark.parametrize("operation", ROW_OPERATIONS, ids=lambda each: type(each).__name__)
def test_operations_on_rows_and_the_users_own_do_not(operation: Operation) -> None:
    assert readers(trace(Masked(computing(operation), MASK))) == ["compute#3"]


@pytest.mark.parametrize(("role", "loss"), TOKEN_LOSSES)
def test_losses_of_tokens_read_the_mask(role: str, loss: Loss) -> None:
    graph = trace(Masked(training(role, loss), MASK))
    assert readers(graph) == ["compute#3", f"{role}.train"]
    fields = {edge.columns for edge in graph.data_edges if edge.source == "compute"}
    assert fields == {("response_mask",)}
    assert readers(trace(Masked(training(role, loss)))) == []


def test_a_score_at_the_last_token_does_not() -> None:
    graph = trace(Masked(training("critic", BradleyTerry()), MASK))
    assert readers(graph) == ["compute#3"]


def test_each_batch_of_a_sum_of_losses_has_its_own() -> None:
    def use(flow: Flow, batch: Any) -> None:
        texts = batch.select("prompt_tokens", "response_tokens")
        flow.actor.train(texts, CrossEntropy(), (batch, CrossEntropy(weight=0.1)))
        flow.actor.train(batch, CrossEntropy(), (texts, CrossEntropy(weight=0.1)))

    graph = trace(Masked(use, MASK))
    plain, masked = graph.calls[-2:]
    assert plain.reads == masked.auxiliary_reads[0] == ("prompt_tokens", "response_tokens")
    assert masked.reads == plain.auxiliary_reads[0]
    assert masked.reads == ("prompt_tokens", "response_mask", "response_tokens")


def test_what_is_masked_in_a_call_holds_behind_it() -> None:
    graph = trace(Masked(computing(MASK, Whiten("reward_valid"))))
    assert "response_mask" in graph.calls[-1].writes and readers(graph) == []
    anew = trace(Masked(computing(Whiten("reward_valid"), MASK), MASK))
    assert readers(anew) == ["compute#3", "compute#4"], "the batch's holds in front of it"


def test_a_mask_under_another_name_is_none() -> None:
    def use(flow: Flow, batch: Any) -> None:
        flow.compute(batch.rename(response_mask="kept"), Whiten("reward_valid"))

    assert readers(trace(Masked(use, MASK))) == ["compute#3"]


@pytest.mark.parametrize("use", [computing(RewardsToGo()), training("actor", CrossEntropy())])
def test_a_field_of_another_kind_is_no_mask(use: Callable[[Flow, Any], object]) -> None:
    def renamed(flow: Flow, batch: Any) -> None:
        use(flow, batch.rename(reward_scores="response_mask"))

    message = (
        "got response_mask, which is a score per row from reward.score, allowed which response "
        "tokens count, per token"
    )
    with pytest.raises(FlowError, match=message):
        trace(Masked(renamed))


def test_a_mask_is_none_of_an_operations_columns() -> None:
    with pytest.raises(FlowError, match="advantages='response_mask'.*which response tokens count"):
        trace(Masked(computing(Whiten("reward_valid", "response_mask")), MASK))
    kinds = {"kept": Kind.MASK}
    own_name = Custom(f"{__name__}:own", ["response_tokens"], ["kept"], kinds=kinds)

    def use(flow: Flow, batch: Any) -> None:
        kept = flow.compute(batch, own_name).rename(kept="response_mask")
        flow.compute(batch | kept, RewardsToGo())

    assert readers(trace(Masked(use))) == ["compute#4"]
