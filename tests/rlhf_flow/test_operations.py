"""Which rows operations depend on, and which columns their settings name."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow import ClippedLoss, CrossEntropy, Dpo, Scope, ValueLoss
from rlhf_flow.errors import FlowError
from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.operations import (
    AdaptiveKlCoefficient,
    BestAgainstWorst,
    Custom,
    Gae,
    GroupAdvantages,
    LagrangeMultiplier,
    PairLines,
    PenalizedAdvantages,
    PenalizedScores,
    TokenRewards,
    Whiten,
)

OF_ROWS = (TokenRewards("s"), Gae(1.0, 1.0, "v"), PenalizedAdvantages("c"))
OF_GROUPS = (
    *(GroupAdvantages("s", "v"), BestAgainstWorst("s", "v"), PairLines("s")),
    Custom("mine:f", [], []),
)
OF_BATCHES = (Whiten("v"), LagrangeMultiplier("s", "v"))
CUSTOM = tuple(Custom("mine:f", [], [], scope=scope) for scope in Scope)


@given(st.lists(st.sampled_from(OF_ROWS + OF_GROUPS + OF_BATCHES + CUSTOM), min_size=1))
def test_a_call_depends_on_as_many_rows_as_the_widest_of_its_operations(
    operations: list[Any],
) -> None:
    scope = ComputeOptions(tuple(operations)).scope
    own = {operation.scope for operation in operations}
    assert scope in own
    assert scope is Scope.BATCH or Scope.BATCH not in own
    assert scope is not Scope.ROW or own == {Scope.ROW}


def test_built_in_operations_have_the_scope_of_their_formula() -> None:
    assert {each.scope for each in OF_ROWS} == {Scope.ROW}
    assert {each.scope for each in OF_GROUPS} == {Scope.GROUP}
    assert {each.scope for each in OF_BATCHES} == {Scope.BATCH}


@pytest.mark.parametrize(
    ("reader", "reads", "writes"),
    [
        (TokenRewards("s"), {"s", "response_tokens"}, {"token_rewards"}),
        (
            TokenRewards("s", 0.1, KlEstimator.K1, reference_log_probs="l"),
            {"s", "response_tokens", "l", "rollout_log_probs"},
            {"token_rewards"},
        ),
        (Gae(1.0, 1.0, "v", "r", "a", "b"), {"v", "r"}, {"a", "b"}),
        (Whiten("v"), {"v", "advantages"}, {"advantages"}),
        (
            GroupAdvantages("s", "v"),
            {"s", "v", "prompt_id", "response_tokens"},
            {"advantages"},
        ),
        (BestAgainstWorst("s", "v", "p"), {"s", "v", "prompt_id"}, {"p"}),
        (
            PairLines("s", "p", lines="l"),
            {"s", "p", "record", "response_text"},
            {"l"},
        ),
        (
            AdaptiveKlCoefficient(0.1, 6.0, "l", KlEstimator.K1),
            {"response_tokens", "l", "rollout_log_probs"},
            {"kl_coefficient"},
        ),
        (
            PenalizedScores("s", 0.1, "l", KlEstimator.K1, adaptive_coefficient="c"),
            {"s", "response_tokens", "l", "rollout_log_probs", "c"},
            {"penalized_scores"},
        ),
        (LagrangeMultiplier("s", "v"), {"s", "v"}, {"multiplier"}),
        (PenalizedAdvantages("c"), {"c", "multiplier", "advantages"}, {"advantages"}),
        (Custom("mine:f", ["x"], ["y"]), {"x"}, {"y"}),
        (
            ClippedLoss("v", reference_log_probs="ignored"),
            {"v", "prompt_tokens", "response_tokens", "rollout_log_probs", "advantages"},
            set(),
        ),
        (
            ValueLoss("v", "old"),
            {"v", "old", "prompt_tokens", "response_tokens", "returns"},
            set(),
        ),
        (CrossEntropy(), {"prompt_tokens", "response_tokens"}, set()),
        (Dpo("r"), {"prompt_tokens", "response_tokens", "r", "preference"}, set()),
    ],
)
def test_settings_name_the_columns_that_are_read_and_written(
    reader: Any, reads: set[str], writes: set[str]
) -> None:
    assert set(reader.reads) == reads == {each.column for each in reader.inputs()}
    assert set(reader.writes) == writes if writes else not list(reader.outputs())
    assert pickle.loads(pickle.dumps(reader)) == reader == dataclasses.replace(reader)


def of_pair(name: str = "PAIR") -> Custom:
    return Custom("mine:f", ["x"], ["y"], protocol=f"mine:{name}")


def test_a_call_has_the_protocol_of_its_operations() -> None:
    assert ComputeOptions((of_pair(), of_pair())).protocol == "mine:PAIR"
    assert ComputeOptions((Whiten("v"), Custom("mine:f", [], []))).protocol is None
    assert pickle.loads(pickle.dumps(of_pair())) == of_pair() != Custom("mine:f", ["x"], ["y"])


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (GroupAdvantages("s", "v"), "got mine:f with mine:PAIR, GroupAdvantages with none of its"),
        (of_pair("OTHER"), "got mine:f with mine:PAIR, mine:f with mine:OTHER, allowed one for"),
        (Custom("mine:g", [], [], scope=Scope.BATCH), "mine:g with none of its own, allowed one"),
    ],
)
def test_a_call_has_one_protocol(other: Any, got: str) -> None:
    """Whatever sums over the ranks of the data axis would count rows twice, or miss some."""
    with pytest.raises(FlowError, match=got):
        ComputeOptions((of_pair(), other))


@pytest.mark.parametrize("protocol", ["mine", "mine:", ":PAIR", "mine:A B", (1, 2)])
def test_a_protocol_is_named_by_an_entry_point(protocol: Any) -> None:
    with pytest.raises(FlowError, match=r"names no pair: got .*, allowed package.module:NAME"):
        Custom("mine:f", [], ["y"], protocol=protocol)


def test_what_sees_all_rows_has_no_protocol() -> None:
    with pytest.raises(FlowError, match=r"got scope=Scope.BATCH and protocol='mine:PAIR', allowed"):
        Custom("mine:f", [], ["y"], scope=Scope.BATCH, protocol="mine:PAIR")


def test_a_scope_is_one_of_three() -> None:
    with pytest.raises(FlowError, match="got scope='batch', allowed Scope.ROW, Scope.GROUP"):
        Custom("mine:f", [], [], scope="batch")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keeps": {"mean": 0.0}}, "keeps numbers, of which every rank would have others"),
        ({"keeps": {"mean": "0"}, "scope": Scope.BATCH}, "with a finite number"),
        ({"keeps": {"mean": float("nan")}, "scope": Scope.BATCH}, "with a finite number"),
        ({"keeps": {"a.b": 0.0}, "scope": Scope.BATCH}, "with a finite number"),
        (
            {"keeps": {"mean": 0}, "scope": Scope.BATCH, "parameters": {"state": 1}},
            "a parameter with the name of its kept numbers",
        ),
    ],
)
def test_what_an_operation_keeps_are_numbers_that_are_the_same_everywhere(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FlowError, match=message):
        Custom("mine:f", [], ["y"], **settings)
    kept = Custom("mine:f", [], ["y"], {"beta": 1}, scope=Scope.BATCH, keeps={"mean": -1})
    assert kept.arguments == {"beta": 1, "state": {"mean": -1}}
    assert pickle.loads(pickle.dumps(kept)) == kept
