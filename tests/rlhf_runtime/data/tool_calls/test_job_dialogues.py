"""Dialogues of a job with the tools of its environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.job_dialogues import job_dialogues
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription, ToolFacts

from .conversations import schema

DESCRIPTION = EnvironmentDescription(
    {name: ClassFacts({"add": ToolFacts(schema("add"), True)}) for name in ("a", "b")}
)
PLAIN = {"path": "rows.jsonl"}


def spec_of(train: dict[str, Any], evaluation: dict[str, Any]) -> RLHFJobSpec:
    return RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "data": {"train": train, "evaluation": evaluation},
            "rewards": [{"environment": {}}],
            "rollout": {"samplesPerPrompt": 2, "environment": {"entrypoint": "tools:Tools"}},
            "schedule": {"steps": 1, "promptsPerStep": 2},
        }
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    write_tokenizer(tmp_path)
    return TextTokenizer(tmp_path)


def test_every_environment_has_a_dialogue(tokenizer: TextTokenizer) -> None:
    assert job_dialogues(spec_of(PLAIN, PLAIN), tokenizer, DESCRIPTION).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("evaluation", "got"),
    [
        ({"chatTemplate": "Never"}, "sources with different ones"),
        ({"chatTemplateArguments": {"enable_thinking": False}}, "sources with different ones"),
        ({"chatTemplateArgumentsField": "extra"}, "chatTemplateArgumentsField"),
    ],
)
def test_rows_that_are_rendered_in_several_ways_are_refused(
    tokenizer: TextTokenizer, evaluation: dict[str, Any], got: str
) -> None:
    spec = spec_of(PLAIN, {**PLAIN, **evaluation})
    with pytest.raises(ChatTemplateUnusable, match=f"rendered in one way: got {got}") as caught:
        job_dialogues(spec, tokenizer, DESCRIPTION)
    assert caught.value.location == ("spec", "data")
