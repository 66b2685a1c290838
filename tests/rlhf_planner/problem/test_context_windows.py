"""Sequences that a model does not take are refused with the sum."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_planner.plan import make_plan, pools_of
from rlhf_planner.problem.devices import inventory_from_pools
from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS, context_tokens


def test_all_known_models_have_one() -> None:
    assert all(context_tokens(model) for model in WELL_KNOWN_MODELS)
    assert context_tokens("Qwen/Qwen2.5-7B-Instruct") == 32768
    assert context_tokens("Qwen/Qwen2.5-7B") == 131072
    assert context_tokens("Qwen/Qwen2.5-Math-7B") == 4096
    assert context_tokens("somebody/else") is None


@pytest.mark.parametrize(
    ("response", "on_stop", "is_refused"),
    [(31744, {}, False), (31745, {}, True), (31745, {"ContextLimit": "Mask"}, False)],
)
def test_the_longest_sequence_is_the_prompt_with_the_response(
    job: Any, response: int, on_stop: dict[str, str], is_refused: bool
) -> None:
    pool = {"name": "a", "gpu": "H100", "nodes": 1, "devicesPerNode": 8}
    made = job(
        models={"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-0.5B-Instruct"}}},
        rollout={"maxPromptTokens": 1024, "maxResponseTokens": response, "samplesPerPrompt": 2}
        | {"onStop": on_stop},
        resources={"nodePools": [pool]},
        schedule={"steps": 1, "promptsPerStep": 8},
    )
    assert pools_of(made) == inventory_from_pools(made.spec.resources.node_pools)
    if not is_refused:
        make_plan(made, pools_of(made))
        return
    with pytest.raises(ManifestError) as raised:
        make_plan(made, pools_of(made))
    assert "got maxPromptTokens + maxResponseTokens = 32,769, allowed 32,768" in str(raised.value)
