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
def running(place: Path, name: str, **environment: str) -> Iterator[tuple[Command, Path]]:
    """A run in the background, and its folder; whatever is left of it is ended at the end."""
    folder = place / name
    words = ["run", example("01", place / f"{name}.yaml", JOB), "--output", folder]
    command = start(words, folder.with_suffix(".log"), **environment)
    try:
        yield command, folder
    finally:
        command.end()


def helper(command: Command, program: str) -> psutil.Process:
    """The process of a command that runs a program, which is in its command line."""
    (found,) = [process for process, shown in command.processes() if f"{program} " in shown]
    return found


@pytest.mark.nightly  # the test below kills the run's own server, test_fork_server.py one of two
def test_a_run_goes_on_when_what_stands_by_dies(place: Path) -> None:
    """A fork server takes its workers along. The next ones import by themselves."""
    shared = {"RLHF_STANDBY": "dies"}
    with (
        standing_by(place / "dies.log", **shared) as standby,
        running(place, "without-standby", **shared) as (command, folder),
    ):
        command.wait_for_text("checkpoint step=2")
        assert all(SERVER not in shown for _, shown in command.processes()), "it started its own"
        helper(standby, SERVER).kill()
        assert standby.wait() == ExitCode.RETRIABLE, standby.output
        assert "ForkServerFailed" in standby.output
        assert command.wait() == ExitCode.DONE, command.output
        command.assert_gone()
        assert command.output.count(", after WorkerLost: ") == 1, command.output
        assert [record["step"] for record in records(folder, "step")][-1] == STEPS


@pytest.mark.nightly  # test_fork_server.py retires a server, without a run
def test_what_stands_by_ends_after_the_runs_that_it_has_workers_of(place: Path) -> None:
    shared = {"RLHF_STANDBY": "ends"}
    with (
        standing_by(place / "ends.log", **shared) as standby,
        running(place, "before-its-end", **shared) as (command, folder),
    ):
        command.wait_for_text("checkpoint step=2")
        standby.send(signal.SIGINT)
        standby.wait_for_text("waiting for the runs")
        assert command.wait() == ExitCode.DONE, command.output
        assert standby.wait() == ExitCode.DONE, standby.output
        command.assert_gone()
    assert "workers are forked from `rlhf standby`" in command.output
    assert "WorkerLost" not in command.output, command.output
    assert [record["step"] for record in records(folder, "step")][-1] == STEPS


def test_a_run_goes_on_when_its_fork_server_dies_and_ends_when_a_process_of_rays_does(
    place: Path,
) -> None:
    with running(place, "without-its-own", **BY_ITSELF) as (command, folder):
        command.wait_for_text("checkpoint step=2")
        helper(command, SERVER).kill()
        command.wait_for_text("checkpoint step=", after="after WorkerLost: ")
        helper(command, SERVER)
        end_without(command, "gcs_server", folder)
        assert command.output.count(", after WorkerLost: ") == 1, command.output


def test_a_run_ends_when_a_process_of_rays_dies_in_the_start(place: Path) -> None:
    with running(place, "without-its-raylet") as (command, folder):
        command.wait_for_text("phase=ray")
        end_without(command, "raylet", folder)


def end_without(command: Command, program: str, folder: Path) -> None:
    """Kill a process of Ray's own; the run says so in our words."""
    helper(command, f"/{program}").kill()
    assert command.wait() == ExitCode.RETRIABLE, command.output
    command.assert_gone()
    assert end(folder)["reason"] == "RayFailed", command.output
    assert f"got no {program}" in command.output and "Traceback" not in command.output
