"""The command's shell: help, names, and how errors become exit codes."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from rlhf_api.errors import ManifestError, RlhfError, UnknownFieldError
from rlhf_api.exits import ExitCode
from rlhf_api.problems import Problem
from rlhf_cli.app import app, program_name
from rlhf_cli.command_errors import guarded

runner = CliRunner()
COMMANDS = [
    *(
        "validate",
        "explain",
        "plan",
        "fill",
        "run",
        "drive",
        "report",
        "samples",
        "evaluate",
        "version",
    ),
    *("submit", "status", "describe", "logs", "fetch", "suspend", "resume", "cancel"),
]


class LostMachineError(RlhfError):
    """The machine went away."""

    reason = "LostMachine"
    exit_code = ExitCode.RETRIABLE


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples:\n" in result.output
    assert f"rlhf {command}" in result.output


def test_help_lists_every_command_and_the_exit_codes() -> None:
    output = runner.invoke(app, ["-h"]).output
    assert all(f"\n  {command} " in output for command in COMMANDS)
    assert all(str(code.value) in output for code in ExitCode)


def test_no_command_shows_the_help_and_a_wrong_one_what_is_near() -> None:
    assert "Usage:" in runner.invoke(app, []).output
    result = runner.invoke(app, ["validat"])
    assert result.exit_code == 2
    assert "Did you mean 'validate', 'evaluate'?" in result.output


def test_version_names_the_versions_of_manifests_that_it_reads() -> None:
    assert "rlhf-operator.dev/v1alpha1" in runner.invoke(app, ["version"]).output


@pytest.mark.parametrize(
    ("executable", "name"),
    [
        ("/usr/bin/rlhf", "rlhf"),
        ("kubectl-rlhf", "kubectl rlhf"),
        ("/home/a/bin/kubectl-rlhf.exe", "kubectl rlhf"),
        ("-c", "rlhf"),
        ("__main__.py", "rlhf"),
    ],
)
def test_the_program_is_called_as_it_was_started(executable: str, name: str) -> None:
    assert program_name(executable) == name


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (LostMachineError("a node is gone"), 4, "LostMachine: a node is gone\n"),
        (UnknownFieldError("no field x"), 2, "UnknownField: no field x\n"),
        (
            ManifestError([Problem(("spec",), "bad", file="j.yaml", line=3, column=1)]),
            2,
            "j.yaml:3:1: spec: bad\nInvalidManifest: 1 problem\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_each_error_ends_with_its_code_and_words(
    error: BaseException, code: int, says: str
) -> None:
    result = runner.invoke(_raising(error), [])
    assert (result.exit_code, result.stderr, result.stdout) == (code, says, "")


def test_a_fault_of_the_software_shows_its_traceback_and_says_so() -> None:
    result = runner.invoke(_raising(ZeroDivisionError("by zero")), [])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "a fault of rlhf, not of your manifest: ZeroDivisionError: by zero" in result.stderr


def _raising(error: BaseException) -> typer.Typer:
    failing = typer.Typer()

    @failing.command()
    @guarded
    def command() -> None:
        raise error

    return failing


def test_the_version_is_an_option_and_a_command() -> None:
    asked = [CliRunner().invoke(app, [form]) for form in ("--version", "version")]
    assert [result.exit_code for result in asked] == [0, 0]
    assert asked[0].output == asked[1].output and asked[0].output.startswith("rlhf 0.")
