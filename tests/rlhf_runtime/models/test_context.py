"""How many positions a model has, as vLLM counts them."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.spec.rollout import RolloutSpec
from rlhf_runtime.models.context import max_positions, require_context
from rlhf_runtime.models.errors import ContextTooShort

LLAMA = {"model_type": "llama", "max_position_embeddings": 100}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, 100),
        ({"model_type": "llama"}, None),
        ({"text_config": LLAMA}, 100),
        (LLAMA | {"model_max_length": 400}, 400),
        (LLAMA | {"rope_scaling": None}, 100),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
        (LLAMA | {"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, 200),
        (LLAMA | {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, 100),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 100),
        (
            LLAMA
            | {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}},
            100,
        ),
    ],
)
def test_positions_follow_the_config(config: dict[str, Any], expected: int | None) -> None:
    assert max_positions(config) == expected


def test_sequences_may_be_as_long_as_that() -> None:
    require_context("actor", LLAMA, RolloutSpec(maxPromptTokens=60, maxResponseTokens=40))
    require_context("actor", {}, RolloutSpec(maxPromptTokens=10**6))
    with pytest.raises(
        ContextTooShort, match="got .* = 101, allowed .* 100 .*; lower one of them, .*ContextLimit"
    ):
        require_context("actor", LLAMA, RolloutSpec(maxPromptTokens=60, maxResponseTokens=41))


def test_responses_may_end_where_the_context_is_full() -> None:
    on_stop = {"ContextLimit": "Train"}
    rollout = RolloutSpec.model_validate({"maxPromptTokens": 99, "onStop": on_stop})
    require_context("actor", LLAMA, rollout)
    rollout = RolloutSpec.model_validate({"maxPromptTokens": 100, "onStop": on_stop})
    told = r"got maxPromptTokens \+ 1 = 101, allowed .*; lower maxPromptTokens, .* context$"
    with pytest.raises(ContextTooShort, match=told):
        require_context("actor", LLAMA, rollout)
