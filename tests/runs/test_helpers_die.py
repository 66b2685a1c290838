"""Processes that work for a job without being its workers are killed: fork server and Ray's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlhf_api.exits import ExitCode

from .cli import Command, start
from .manifests import example
from .records import end, records

pytestmark = pytest.mark.ray

JOB = {
    "schedule": {"warmStart": None, "steps": 6, "evaluateEverySteps": 0},
    "checkpoint": {"everySteps": 1},
}


@contextmanager
def running(place: Path, name: str) -> Iterator[tuple[Command, Path]]:
    """A run in the background, and its folder; whatever is left of it is ended at the end."""
    folder = place / name
    words = ["run", example("01", place / f"{name}.yaml", JOB), "--output", folder]
    command = start(words, folder.with_suffix(".log"))
    try:
        yield command, folder
    finally:
        command.end()


def helper(command: Command, program: str) -> psutil.Process:
    """The process of a command that runs a program, which is in its command line."""
    (found,) = [process for process, shown in command.processes() if f"{program} " in shown]
    return found


def test_a_fork_server_that_dies_takes_its_workers_along_and_is_started_again(place: Path) -> None:
    with running(place, "without-its-fork-server") as (command, folder):
        command.wait_for_text("checkpoint step=2")
        helper(command, "rlhf_runtime.forkserver.server").kill()
        assert command.wait() == ExitCode.DONE, command.output
        command.assert_gone()
    assert command.output.count(", after WorkerLost: ") == 1, command.output
    assert [record["step"] for record in records(folder, "step")][-1] == 6


@pytest.mark.parametrize("program", ["raylet", "gcs_server"])
@pytest.mark.parametrize("moment", ["phase=ray", "checkpoint step=2"], ids=["start", "training"])
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
