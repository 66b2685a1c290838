"""A field is taken for what it holds: anything else is refused at the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow import (
    Algorithm,
    BatchValue,
    ClippedLoss,
    Dpo,
    Flow,
    Kind,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
    ValueLoss,
)
from rlhf_flow.errors import FlowError
from rlhf_flow.step.columns import COLUMNS, column_spec
from rlhf_flow.step.operations import (
    BestAgainstWorst,
    Custom,
    Gae,
    GroupAdvantages,
    LagrangeMultiplier,
    PenalizedAdvantages,
    TokenRewards,
    Whiten,
)
from rlhf_flow.trace.tracing import trace

Use = Callable[[Flow, Any], object]


class Everything(Algorithm):
    """A batch with a field of every kind, and something that uses it."""

    def __init__(self, use: Use) -> None:
        self._use = use

    def roles(self) -> Roles:
        models = {"actor": LanguageModel, "reference": LanguageModel}
        critics = {"critic": ScalarModel, "cost_critic": ScalarModel}
        return {**models, **critics, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.actor.log_probs(batch) | flow.reference.log_probs(batch)
        batch |= flow.critic.values(batch) | flow.cost_critic.values(batch)
        rewards, gae = TokenRewards("reward_scores"), Gae(1.0, 1.0, values="critic_values")
        multiplier = LagrangeMultiplier("reward_scores", "reward_valid", multiplier="weight")
        batch |= flow.compute(batch, rewards, gae, multiplier)
        self._use(flow, batch)


def computing(*operations: Any) -> Use:
    return lambda flow, batch: flow.compute(batch, *operations)


def training(role: str, loss: Any) -> Use:
    return lambda flow, batch: getattr(flow, role).train(batch, loss)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            computing(GroupAdvantages("reward_valid", "reward_scores")),
            r"GroupAdvantages\(scores='reward_valid'\), which is true or false per row from "
            "reward.score, allowed a score per row; name one of the batch: reward_scores",
        ),
        (
            computing(Gae(1.0, 1.0, values="reward_scores")),
            r"Gae\(values='reward_scores'\), .*name one of the batch: cost_critic_values, critic_v",
        ),
        (
            training("actor", ClippedLoss(valid="reward_scores")),
            r"actor\.train takes.*ClippedLoss\(valid='reward_scores'\).*: finished, reward_valid",
        ),
        (
            computing(Gae(1.0, 1.0, values="actor_log_probs")),
            "log-probability per token from actor.log_probs, allowed a value per token",
        ),
        (
            training("actor", ClippedLoss("reward_valid", old_log_probs="reference_log_probs")),
            "compares with another role's column: .*'reference_log_probs'.* from reference.log_prob"
            ".*allowed one of actor.*name actor_log_probs or rollout_log_probs",
        ),
        (
            training("critic", ValueLoss("reward_valid", values="cost_critic_values")),
            "compares with another role's column: .*allowed one of critic, .*name critic_values",
        ),
        (
            training("actor", Dpo("reference_log_probs", preference="reward_valid")),
            r"Dpo\(preference='reward_valid'\), which is true or false.*allowed which response of "
            r"a pair was preferred.*flow\.compute\(batch, BestAgainstWorst\(\.\.\.\)\)",
        ),
        (
            computing(BestAgainstWorst("reward_scores", "reward_scores")),
            r"BestAgainstWorst\(valid='reward_scores'\), which is a score per row",
        ),
        (
            computing(PenalizedAdvantages("returns", multiplier="reward_scores")),
            "allowed a multiplier, the same in each row; name one of the batch: weight",
        ),
        (
            lambda flow, batch: flow.reward.score(
                batch.select("prompt_id", "finished", "record", "reward_scores").rename(
                    reward_scores="response_text"
                )
            ),
            r"reward\.score#2 takes .*: got response_text, which is a score per row from "
            r"reward\.score, allowed a text per row; the batch has none: join the result of "
            r"flow\.actor\.generate\(batch\)",
        ),
    ],
)
def test_a_field_of_another_kind_or_role_is_refused(use: Use, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        trace(Everything(use))


def test_a_field_keeps_its_kind_under_another_name() -> None:
    def swap(flow: Flow, batch: Any) -> None:
        swapped = batch.rename(reward_scores="reward_valid", reward_valid="reward_scores")
        flow.compute(swapped, GroupAdvantages("reward_valid", "reward_scores"))
        flow.compute(swapped, GroupAdvantages("reward_scores", "reward_valid"))

    with pytest.raises(FlowError, match="compute#3 takes .*scores='reward_scores'.*true or false"):
        trace(Everything(swap))


def own(columns: object) -> object:
    """A function of the user's own."""
    return columns


@pytest.mark.parametrize(
    ("written", "kinds", "is_refused"),
    [
        ("baseline", {}, False),
        ("baseline", {"baseline": Kind.SCORES}, False),
        ("baseline", {"baseline": Kind.ADVANTAGES}, True),
        ("advantages", {}, True),
        ("advantages", {"advantages": Kind.SCORES}, False),
    ],
)
def test_what_a_custom_operation_writes_is_what_it_says_or_what_its_name_means(
    written: str, kinds: dict[str, Kind], is_refused: bool
) -> None:
    operation = Custom(f"{__name__}:own", reads=[], writes=[written], kinds=kinds)
    use = computing(operation, GroupAdvantages(written, "reward_valid"))
    if is_refused:
        with pytest.raises(FlowError, match="an advantage per token from compute#2, allowed a sc"):
            trace(Everything(use))
    else:
        trace(Everything(use))


def test_a_kind_of_a_field_that_is_not_written_is_refused() -> None:
    with pytest.raises(FlowError, match="got baselin, allowed baseline; did you mean baseline"):
        Custom("mine:f", reads=[], writes=["baseline"], kinds={"baselin": Kind.SCORES})
    with pytest.raises(FlowError, match="got kinds='scores', allowed Kind.TOKENS"):
        Custom("mine:f", reads=[], writes=["x"], kinds={"x": "scores"})  # type: ignore[dict-item]


ENDINGS = {
    "_scores": {"scores", "costs"},
    "_valid": {"valid"},
    "finished": {"valid"},
    "_log_probs": {"policy_log_probs", "reference_log_probs"},
    "_values": {"values"},
    "token_rewards": {"credits"},
    "advantages": {"credits"},
    "returns": {"credits"},
    "weight": {"multiplier"},
}
"""Who may take a field, by the end of its name."""
SETTINGS: dict[str, Callable[[str], Any]] = {
    "scores": lambda field: GroupAdvantages(field, "reward_valid"),
    "costs": lambda field: LagrangeMultiplier(field, "reward_valid", multiplier="other"),
    "valid": lambda field: Whiten(field),
    "policy_log_probs": lambda field: TokenRewards(
        "reward_scores",
        0.1,
        KlEstimator.K1,
        policy_log_probs=field,
        reference_log_probs="reference_log_probs",
    ),
    "reference_log_probs": lambda field: TokenRewards(
        "reward_scores", 0.1, KlEstimator.K1, reference_log_probs=field
    ),
    "values": lambda field: Gae(1.0, 1.0, values=field),
    "credits": lambda field: Whiten("reward_valid", advantages=field),
    "multiplier": lambda field: PenalizedAdvantages("advantages", field),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_takes_the_fields_that_its_name_promises(setting: str) -> None:
    """Every field of the batch. Oracle: names, whereas the trace follows origins."""
    found: list[str] = []
    trace(Everything(lambda flow, batch: found.extend(batch.column_names)))
    for field in sorted(set(found)):
        takers = [who for end, who in ENDINGS.items() if field.endswith(end)]
        use = computing(SETTINGS[setting](field))
        if any(setting in who for who in takers):
            trace(Everything(use))
        else:
            with pytest.raises(FlowError, match="takes a column for what it is not"):
                trace(Everything(use))


def test_every_field_of_the_system_has_a_kind_and_no_other_name_has() -> None:
    assert all(column_spec(name) is COLUMNS[name] for name in COLUMNS)
    for name in ("cost_scores", "cost_valid", "a_log_probs", "cost_critic_values"):
        assert column_spec(name) is not None
    assert column_spec("baseline") is None and column_spec("values") is None
