"""Environments are imported and checked before a job starts; errors name their field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import RlhfError
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.load import DataUse
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.preflight.data import check_data
from rlhf_runtime.preflight.environments import check_environments
from rlhf_runtime.preflight.findings import Findings

from .own_environments import spec_of

# Renders tools, calls and answers; `$` stands for what a test writes for a call.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}<{{ m.role[0] }}>{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}$ {% endfor %}{% else %}{{ m.content }}{% endif %}<eos>"
    "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
UNKNOWN_CALL = "#{{ c.function.name }}#{{ c.function.arguments | tojson }}#"


def checked(
    spec: RLHFJobSpec, one_machine: bool = True, seconds: float = 60.0
) -> tuple[EnvironmentDescription | None, Findings]:
    findings = Findings()
    return check_environments(spec, seconds, one_machine, findings), findings


def the_error(findings: Findings) -> RlhfError:
    (error,) = findings.gathered.errors
    assert error.exit_code == 3
    return error


ENTRYPOINT = ("spec", "rollout", "environment", "entrypoint")


@pytest.mark.parametrize(
    ("environment", "says", "location"),
    [
        (
            {"entrypoint": "tools:NoHints"},
            "argument a of the method NoHints.add has no",
            ENTRYPOINT,
        ),
        ({"entrypoint": "tools:NoDocstring"}, "got no docstring, allowed", ENTRYPOINT),
        ({"entrypoint": "tools:Nothing"}, "has no tools: got no public method", ENTRYPOINT),
        ({"entrypoint": "tools:Calc"}, "no such name in the module: got Calc", ENTRYPOINT),
        ({"entrypoint": "nowhere:Calc"}, "no such module: got nowhere", ENTRYPOINT),
        ({"entrypoint": "broken:Calc"}, "No CUDA GPUs are available", ENTRYPOINT),
        ({"entrypoint": "ending:Calc"}, "ended with exit code 3", ENTRYPOINT),
        (
            {"entrypoint": "tools:Calculator", "tools": ["tools:add"]},
            "a tool and a method have one name: got add",
            ENTRYPOINT,
        ),
        (
            {"tools": ["tools:add", "tools:untold"]},
            "argument a of the tool tools:untold has no type hint",
            ("spec", "rollout", "environment", "tools", 1),
        ),
        (
            {"classes": {"calc": "tools:Calculator", "other": "tools:add"}},
            "not a class: got tools:add",
            ("spec", "rollout", "environment", "classes", "other"),
        ),
    ],
)
def test_an_unusable_environment_is_an_error_at_its_field(
    place: Path, environment: dict[str, Any], says: str, location: tuple[str | int, ...]
) -> None:
    description, findings = checked(spec_of(place, environment))
    error = the_error(findings)
    assert description is None and says in str(error) and error.location == location


@pytest.mark.parametrize(
    ("entrypoint", "why"),
    [
        ("broken:Calc", "RuntimeError: No CUDA GPUs are available"),
        ("ending:Calc", "its process ended with exit code 3 while it imported the module"),
    ],
)
def test_other_machines_may_have_what_an_import_lacks_here(
    place: Path, entrypoint: str, why: str
) -> None:
    description, findings = checked(spec_of(place, {"entrypoint": entrypoint}), one_machine=False)
    assert description is None and not findings.gathered.errors
    (text,) = findings.unchecked
    assert text.startswith("rollout.environment: its import fails here: ") and why in text
    # No machine gives a method its hints.
    _, findings = checked(spec_of(place, {"entrypoint": "tools:NoHints"}), one_machine=False)
    assert "has no type hint" in str(the_error(findings))


def test_a_slow_import_is_left_to_workers(place: Path) -> None:
    (place / "slow.py").write_text("import time; time.sleep(1000)\n")
    description, findings = checked(spec_of(place, {"entrypoint": "slow:Calc"}), seconds=0.0)
    assert description is None and not findings.gathered.errors
    assert findings.unchecked == ["rollout.environment: its module loads slowly"]


@pytest.mark.parametrize(
    ("kind", "reward", "says"),
    [
        ("Silent", {}, "gives no reward: got no method reward in tools:Silent, allowed a class"),
        ("Graded", {}, "has several parts: got a map with right, short"),
        ("Graded", {"parts": {"wrong": 1.0}}, "no such part: got wrong, allowed right, short"),
    ],
)
def test_a_reward_that_no_environment_gives_is_an_error_at_its_field(
    place: Path, kind: str, reward: dict[str, Any], says: str
) -> None:
    _, findings = checked(spec_of(place, {"entrypoint": f"tools:{kind}"}, reward))
    error = the_error(findings)
    assert says in str(error) and error.location == ("spec", "rewards", 0, "environment")


def test_rewards_that_fit_their_environment_pass(place: Path) -> None:
    parts = {"parts": {"right": 1.0}}
    description, findings = checked(spec_of(place, {"entrypoint": "tools:Graded"}, parts))
    assert description is not None and not findings.gathered.errors and not findings.warnings


def test_an_environment_without_a_reward_among_others_is_a_warning(place: Path) -> None:
    classes = {"calc": "tools:Calculator", "silent": "tools:Silent"}
    _, findings = checked(spec_of(place, {"classes": classes}))
    assert not findings.gathered.errors
    assert (
        "the reward reward has no score for conversations of tools:Silent" in findings.warnings[0]
    )


def rows_checked(spec: RLHFJobSpec, place: Path) -> Findings:
    description, findings = checked(spec)
    assert description is not None
    check_data(spec, DataUse(environment=description), place, None, findings)
    return findings


def with_template(place: Path, template: str) -> None:
    (place / "chat_template.jinja").write_text(template)


CALCULATOR = {"entrypoint": "tools:Calculator"}
SECTION = ("spec", "rollout", "environment")
HERMES = '<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}'


def test_the_tools_and_their_format_are_facts(place: Path) -> None:
    findings = rows_checked(spec_of(place, CALCULATOR), place)
    assert not findings.gathered.errors and not findings.warnings
    assert findings.facts[0] == (
        "rollout.environment: the tools of tools:Calculator are add(a, b); calls are written in "
        "the format Python"
    )


def test_evaluation_rows_may_have_prompts_of_training_but_not_all_of_a_row(place: Path) -> None:
    for name, secrets in {"train": [1, 2], "other": [3, 4], "same": [2, 3]}.items():
        lines = [json.dumps({"prompt": "1-9?", "secret": secret}) + "\n" for secret in secrets]
        (place / f"{name}.jsonl").write_text("".join(lines))

    def warnings(evaluation: str) -> list[str]:
        names = {"train": "train", "evaluation": evaluation}
        data = {split: {"path": f"{place}/{name}.jsonl"} for split, name in names.items()}
        document = spec_of(place, CALCULATOR).model_dump(by_alias=True, exclude_unset=True)
        spec = RLHFJobSpec.model_validate({**document, "data": data})
        return rows_checked(spec, place).warnings

    assert not warnings("other")
    (warning,) = warnings("same")
    assert warning.startswith("1 of 2 prompts of data.evaluation are also in data.train")


def test_prompts_are_rendered_with_the_tools(place: Path) -> None:
    with_template(place, TEMPLATE.replace("$", HERMES + "</tool_call>"))
    findings = rows_checked(spec_of(place, CALCULATOR), place)
    assert not findings.gathered.errors
    assert "calls are written in the format Hermes" in findings.facts[0]
    shown = "data.train: row 0, prompt, 15 tokens: 'add <u>1+1=<eos><a>'"
    assert shown in findings.facts


@pytest.mark.parametrize(
    ("template", "environment", "says"),
    [
        (None, {"toolFormat": "Hermes"}, "the format Hermes need a chat template"),
        ("{% for m in messages %}{{ m.content }}<eos>{% endfor %}", {}, "ignores tools"),
        (TEMPLATE.replace("$", UNKNOWN_CALL), {}, "writes calls in a format that is not known"),
        ("{{ raise_exception('no tools here') if tools }}" + TEMPLATE, {}, "no tools here"),
        (
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('what role?') }}"
            "{% endif %}{% endfor %}" + TEMPLATE.replace("$", HERMES + "</tool_call>"),
            {},
            "what role?",
        ),
    ],
)
def test_a_tokenizer_that_cannot_write_calls_is_one_error(
    place: Path, template: str | None, environment: dict[str, Any], says: str
) -> None:
    if template is not None:
        with_template(place, template)
    findings = rows_checked(spec_of(place, {**CALCULATOR, **environment}), place)
    error = the_error(findings)
    assert says in str(error) and error.location == SECTION


def test_a_row_that_names_no_environment_is_an_error(place: Path) -> None:
    classes = {"calc": "tools:Calculator", "graded": "tools:Graded"}
    spec = spec_of(place, {"classes": classes}, {"parts": {"right": 1.0}})
    assert not rows_checked(spec, place).gathered.errors
    rows = [{"prompt": "1", "environment": name} for name in ("graded", "sort", "calc", "calc")]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    error = the_error(rows_checked(spec, place))
    assert "allowed the name of an environment: calc, graded" in str(error)
    assert error.location == ("spec", "data", "train")


def test_a_response_without_space_for_two_turns_is_an_error(place: Path) -> None:
    # The line breaks before and behind the answer, and a token of each turn.
    spec = spec_of(place, CALCULATOR, maxResponseTokens=3)
    error = the_error(rows_checked(spec, place))
    assert "got rollout.maxResponseTokens = 3, allowed at least 4" in str(error)
    assert error.location == ("spec", "rollout", "maxResponseTokens")
    short = rows_checked(spec_of(place, CALCULATOR, maxResponseTokens=512), place)
    assert "an answer of 512 tokens ends its conversation" in short.facts[1]


def test_limits_under_which_no_tool_is_called_are_a_warning(place: Path) -> None:
    findings = rows_checked(spec_of(place, {**CALCULATOR, "limits": {"turns": 1}}), place)
    assert not findings.gathered.errors
    (warning,) = findings.warnings
    assert warning.startswith("no tool is ever called: got rollout.environment.limits.turns = 1")
