"""Processes that work for a job without being its workers are killed: fork server and Ray's own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlhf_api.exits import ExitCode

from .cli import BY_ITSELF, Command, standing_by, start
from .manifests import example
from .records import end, records

pytestmark = pytest.mark.ray

SERVER = "rlhf_runtime.forkserver.server"
STEPS = 12
JOB = {
    "schedule": {"warmStart": None, "steps": STEPS, "evaluateEverySteps": 0},
    "checkpoint": {"everySteps": 1},
}


@contextmanager
def running(scratch: Path, name: str, **environment: str) -> Iterator[tuple[Command, Path]]:
    """Start a run; yields it with its folder, and ends its leftovers."""
    folder = scratch / name
    words = ["run", example("01", scratch / f"{name}.yaml", JOB), "--output", folder]
    command = start(words, folder.with_suffix(".log"), **environment)
    try:
        yield command, folder
    finally:
        command.end()


def helper(command: Command, program: str) -> psutil.Process:
    """Process of a command that runs a program."""
    (process,) = [process for process, shown in command.processes() if f"{program} " in shown]
    return process


@pytest.mark.nightly  # the test below kills the run's own server, test_fork_server.py one of two
def test_a_run_continues_when_its_standby_dies(scratch: Path) -> None:
    # The fork server's workers die with it. The next ones import libraries themselves.
    shared = {"RLHF_STANDBY": "dies"}
    with (
        standing_by(scratch / "dies.log", **shared) as standby,
        running(scratch, "without-standby", **shared) as (command, folder),
    ):
        command.wait_for_text("checkpoint step=2")
        assert all(SERVER not in shown for _, shown in command.processes()), "it started its own"
        helper(standby, SERVER).kill()
        assert standby.wait() == ExitCode.RETRIABLE, standby.output
        assert "ForkServerFailed" in standby.output
        assert command.wait() == ExitCode.DONE, command.output
        command.assert_no_leftovers()
        assert command.output.count(", after WorkerLost: ") == 1, command.output
        assert [record["step"] for record in records(folder, "step")][-1] == STEPS


@pytest.mark.nightly  # test_fork_server.py retires a server, without a run
def test_a_standby_ends_after_the_runs_of_its_workers(scratch: Path) -> None:
    shared = {"RLHF_STANDBY": "ends"}
    with (
        standing_by(scratch / "ends.log", **shared) as standby,
        running(scratch, "before-its-end", **shared) as (command, folder),
    ):
        command.wait_for_text("checkpoint step=2")
        standby.send(signal.SIGINT)
        standby.wait_for_text("waiting for the runs")
        assert command.wait() == ExitCode.DONE, command.output
        assert standby.wait() == ExitCode.DONE, standby.output
        command.assert_no_leftovers()
    assert "workers are forked from `rlhf standby`" in command.output
    assert "WorkerLost" not in command.output, command.output
    assert [record["step"] for record in records(folder, "step")][-1] == STEPS


def test_a_run_survives_the_death_of_its_fork_server_but_not_of_rays_processes(
    scratch: Path,
) -> None:
    with running(scratch, "without-its-own", **BY_ITSELF) as (command, folder):
        command.wait_for_text("checkpoint step=2")
        helper(command, SERVER).kill()
        command.wait_for_text("checkpoint step=", after="after WorkerLost: ")
        helper(command, SERVER)
        end_without(command, "gcs_server", folder)
        assert command.output.count(", after WorkerLost: ") == 1, command.output


def test_a_run_ends_when_a_process_of_rays_dies_in_the_start(scratch: Path) -> None:
    with running(scratch, "without-its-raylet") as (command, folder):
        command.wait_for_text("phase=ray")
        end_without(command, "raylet", folder)


def end_without(command: Command, program: str, folder: Path) -> None:
    """Kill a process of Ray's own; the run ends with our message."""
    helper(command, f"/{program}").kill()
    assert command.wait() == ExitCode.RETRIABLE, command.output
    command.assert_no_leftovers()
    assert end(folder)["reason"] == "RayFailed", command.output
    assert f"got no {program}" in command.output and "Traceback" not in command.output
