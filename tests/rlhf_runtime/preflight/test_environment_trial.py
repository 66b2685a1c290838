"""Two scripted conversations with every environment show what training will see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.load import DataUse
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.preflight.data import check_data
from rlhf_runtime.preflight.environment_trial import try_environments
from rlhf_runtime.preflight.environments import check_environments
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.simple_arguments import simple_arguments

from .own_environments import spec_of


def tried(spec: RLHFJobSpec, place: Path, one_machine: bool = True) -> Findings:
    """The findings of the conversations alone."""
    description = check_environments(spec, 60.0, True, Findings())
    assert description is not None
    rows = check_data(spec, DataUse(environment=description), place, None, Findings())
    findings = Findings()
    try_environments(spec, description, TextTokenizer(place), rows, one_machine, findings)
    return findings


def told(findings: Findings, begin: str) -> Sequence[str]:
    """The facts without their begin and without times."""
    return [fact.removeprefix(begin).partition(" (")[0] for fact in findings.facts]


def test_a_conversation_is_shown_with_tokens_mask_calls_and_reward(place: Path) -> None:
    findings = tried(spec_of(place, {"entrypoint": "tools:Calculator"}), place)
    assert not findings.gathered.errors and not findings.warnings
    *facts, end = told(findings, "rollout.environment: tools:Calculator, data.train: row 0, ")
    assert facts == [
        "the prompt, 4 tokens: '1+1='",
        "the response, 10 of 13 tokens are sampled: 'add(1,1)<eos>' [answer: '\\n2\\n'] '<eos>'",
        "ids of tokens, those of answers in brackets: 13 16 16 47 4 52 4 48 1 [63 5 63] 1",
        "add(a=1, b=1) -> '2'",
    ]
    assert end.startswith("its begin took ") and end.endswith("; the reward is 1")


def test_an_environment_that_does_not_repeat_itself_is_a_warning(place: Path) -> None:
    findings = tried(spec_of(place, {"entrypoint": "tools:Restless"}), place)
    assert not findings.gathered.errors
    (warning,) = findings.warnings
    assert warning.startswith("tools:Restless does not repeat itself: the answer to tick() was "), (
        "numbers of random are the same, because it is seeded"
    )
    assert warning.endswith("mark such methods with @side_effects of rlhf_runtime.environments")
    facts = told(findings, "rollout.environment: tools:Restless, data.train: row 0, ")
    assert facts[0] == "the prompt, 6 tokens: '1+1=go'"
    assert "refuse(colour=\"a\") -> 'error: ValueError: not a'" in facts
    assert "reward of the turn 0.25)" in findings.facts[3]
    assert facts[-1].endswith("; the reward is 0.5")


def test_a_conversation_that_fails_is_an_error(place: Path) -> None:
    spec = spec_of(place, {"entrypoint": "tools:Failing"})
    (error,) = tried(spec, place).gathered.errors
    assert error.location == ("spec", "rollout", "environment")
    assert str(error).startswith(
        "a conversation of tools:Failing fails: got EnvironmentFailed in 2 of 2 scripted ones"
    )
    assert "RuntimeError: my own mistake" in str(error)
    elsewhere = tried(spec, place, one_machine=False)
    assert not elsewhere.gathered.errors
    (text,) = elsewhere.unchecked
    assert text.endswith("here a conversation fails: RuntimeError: my own mistake")


def test_the_prompt_with_an_observation_is_that_of_training(place: Path) -> None:
    findings = tried(spec_of(place, {"entrypoint": "tools:Wordy"}), place)
    facts = told(findings, "rollout.environment: tools:Wordy, data.train: row 0, ")
    assert facts[0] == "the prompt, 10 tokens: '1+1=< eos>'"
    (error,) = tried(
        spec_of(place, {"entrypoint": "tools:Wordy"}, maxPromptTokens=9), place
    ).gathered.errors
    assert "got 10 tokens, allowed 9 (rollout.maxPromptTokens)" in str(error)


def test_an_environment_without_a_row_is_not_tried(place: Path) -> None:
    classes = {"calc": "tools:Calculator", "silent": "tools:Silent"}
    findings = tried(spec_of(place, {"classes": classes}), place)
    assert findings.unchecked == [
        "conversations of tools:Silent: there is no row here to begin with"
    ]
    assert len(findings.facts) == 5


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "a"),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": ["integer", "string"]}, 1),
        ({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}, [1]),
        ({"type": "string", "enum": ["red", "blue"]}, "red"),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"a": "a"}),
        ({"type": "object", "additionalProperties": {}}, {}),
        ({"type": "array"}, []),
        ({}, "a"),
    ],
)
def test_simple_arguments_fit_their_schema(schema: dict[str, Any], value: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"needed": schema, "optional": {"type": "string"}},
        "required": ["needed"],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert simple_arguments(tool) == {"needed": value}
