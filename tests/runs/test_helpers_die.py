"""Processes that work for a job without being its workers are killed: fork server and Ray's own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlhf_api.exits import ExitCode

from .cli import Command, standing_by, start
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


def test_runs_go_on_when_what_stands_by_dies_and_when_their_own_fork_server_does(
    place: Path,
) -> None:
    """A fork server takes its workers along. The run starts one of its own, and starts it again."""
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
        command.wait_for_text("checkpoint step=", after="after WorkerLost: ")
        helper(command, SERVER).kill()
        assert command.wait() == ExitCode.DONE, command.output
        command.assert_gone()
        assert command.output.count(", after WorkerLost: ") == 2, command.output
        assert [record["step"] for record in records(folder, "step")][-1] == STEPS


def test_what_stands_by_ends_after_the_runs_that_it_has_workers_of(place: Path) -> None:
    shared = {"RLHF_STANDBY": "ends"}
    with (
        standing_by(place / "ends.log", **shared) as standby,
        running(place, "before-its-end", **shared) as (command, folder),
    ):
        command.wait_for_text("checkpoint step=2")
        standby.send(signal.SIGINT)
        standby.wait_for_text("ends when the runs have ended")
        assert command.wait() == ExitCode.DONE, command.output
        assert standby.wait() == ExitCode.DONE, standby.output
        command.assert_gone()
    assert "workers are forked from `rlhf standby`" in command.output
    assert "WorkerLost" not in command.output, command.output
    assert [record["step"] for record in records(folder, "step")][-1] == STEPS


@pytest.mark.parametrize(
    ("program", "moment"),
    [("raylet", "phase=ray"), ("gcs_server", "checkpoint step=2")],
    ids=["raylet-in-the-start", "gcs-in-training"],
)
def test_a_process_of_rays_own_that_dies_is_told_in_our_words(
    place: Path, program: str, moment: str
) -> None:
    with running(place, f"without-its-{program}-{moment[-1]}") as (command, folder):
        command.wait_for_text(moment)
        helper(command, f"/{program}").kill()
        assert command.wait() == ExitCode.RETRIABLE, command.output
        command.assert_gone()
    assert end(folder)["reason"] == "RayFailed", command.output
    assert f"got no {program}" in command.output and "Traceback" not in command.output
