"""Servers of tools are started, read and tried before a job starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.load import DataUse
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.preflight.data import check_data
from rlhf_runtime.preflight.environment_trial import try_environments
from rlhf_runtime.preflight.environments import check_dialogues, check_environments
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.python_path import PythonPath

from ..environments.own_tool_servers import write_servers
from .own_environments import spec_of

COMMAND = ["python", "-m", "plain_server"]
SECTION = ("spec", "rollout", "environment", "servers", "box")


@pytest.fixture(autouse=True)
def servers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_servers(place)
    monkeypatch.setenv("FOLDER", str(place))


def job(place: Path, server: dict[str, Any], **more: Any) -> RLHFJobSpec:
    """A job whose class has no reward of its own."""
    servers = {"servers": {"box": server}, "variables": ["FOLDER"]}
    return spec_of(place, {"entrypoint": "tools:Calculator", **servers, **more})


def checked(
    spec: RLHFJobSpec, place: Path, one_machine: bool = True
) -> tuple[EnvironmentDescription | None, Findings]:
    findings = Findings()
    return check_environments(
        spec, 60.0, one_machine, findings, PythonPath((str(place),))
    ), findings


def edit_server(place: Path, old: str, new: str) -> None:
    """Replace text of the server's program."""
    module = place / "plain_server.py"
    program = module.read_text()
    assert old in program
    module.write_text(program.replace(old, new))


def test_tools_of_servers_are_described_and_tried_beside_those_of_classes(place: Path) -> None:
    spec = job(place, {"command": COMMAND})
    description, findings = checked(spec, place)
    assert description is not None and not findings.gathered.errors
    tokenizer = TextTokenizer(place)
    check_dialogues(spec, tokenizer, description, findings)
    assert "are add(a, b), act(what), shout(); calls" in findings.facts[0]
    rows = check_data(spec, DataUse(environment=description), place, None, Findings())
    try_environments(spec, description, tokenizer, rows, True, findings, PythonPath((str(place),)))
    assert not findings.gathered.errors and not findings.warnings
    assert any("act() -> 'did act'" in fact for fact in findings.facts)


def test_answers_of_servers_that_differ_need_no_mark(place: Path) -> None:
    edit_server(place, 'f"did {what}"', "str(time.monotonic_ns())")
    spec = job(place, {"command": COMMAND})
    description, _ = checked(spec, place)
    assert description is not None
    rows = check_data(spec, DataUse(environment=description), place, None, Findings())
    findings = Findings()
    tokenizer = TextTokenizer(place)
    try_environments(spec, description, tokenizer, rows, True, findings, PythonPath((str(place),)))
    first, second = findings.warnings
    assert "the answer to act() was " in first and "the answer to shout() was " in second
    for warning in findings.warnings:
        assert warning.endswith(
            "; the numbers of two runs will differ, but conversations go on after a restart: "
            "answers of servers and of methods with @side_effects are kept in the journal, and no "
            "such call is repeated"
        )


def test_a_job_may_have_servers_alone(place: Path) -> None:
    environment = {"servers": {"box": {"command": COMMAND}}, "variables": ["FOLDER"]}
    spec = spec_of(place, environment).model_copy(update={"rewards": ()})
    description, findings = checked(spec, place)
    assert description is not None and not findings.gathered.errors
    assert list(description.environments[""].tools) == ["act", "shout"]


def test_a_server_that_is_not_here_is_an_error_at_its_field_or_left_to_workers(
    place: Path,
) -> None:
    spec = job(place, {"command": ["no-such-program"]})
    description, findings = checked(spec, place)
    (error,) = findings.gathered.errors
    assert description is None and error.location == (*SECTION, "command")
    description, findings = checked(spec, place, one_machine=False)
    assert description is None and not findings.gathered.errors
    (text,) = findings.unchecked
    assert text.startswith("rollout.environment.servers: the server box cannot be started: got no")


def test_a_name_that_calls_cannot_have_is_refused(place: Path) -> None:
    edit_server(place, 'tool("shout"', 'tool("shout-it"')
    spec = job(place, {"command": COMMAND})
    description, findings = checked(spec, place)
    assert description is not None
    check_dialogues(spec, TextTokenizer(place), description, findings)
    (error,) = findings.gathered.errors
    assert "no name of Python: got shout-it" in str(error) and error.location == SECTION[:-1]
