"""A head pod that is being ended lets its driver save."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_api.on_cluster import driver_command
from rlhf_cli import pod_ending

from ..waiting import wait_until

SECONDS = 60.0
SAVING = 7
# Saves when it is asked to, and says so; the first argument is its file.
PROGRAM = """
import pathlib, signal, sys, time
file, marker = map(pathlib.Path, sys.argv[-2:])
def save(*_):
    file.write_text(f"saved, {marker.exists()}")
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
file.write_text("runs")
while True:
    time.sleep(60)
"""


class Processes:
    """Processes of a pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "ending"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of this name; return when it runs."""
        program, file = self.folder / name, self.file(name)
        program.write_text(PROGRAM)
        command = [sys.executable, str(program), *arguments, str(file), str(self.marker)]
        process = subprocess.Popen(command)
        self._started.append(process)
        wait_until(lambda: file.exists() and file.read_text() == "runs", SECONDS, name)
        # Other drivers of this machine are no processes of the pod.
        (self.folder / "proc").mkdir(exist_ok=True)
        (self.folder / "proc" / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        return process

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    monkeypatch.setattr(pod_ending, "PROCESSES", tmp_path / "proc")
    monkeypatch.setattr(pod_ending, "POD_ENDING_FILE", str(processes.marker))
    yield processes
    processes.end()


def test_a_driver_saves_and_ends_before_its_pod(pod: Processes) -> None:
    driver = pod.start("rlhf", *driver_command("sort-1-0")[1:])
    other = pod.start("raylet", "drive", "job.yaml")
    pod_ending.main()
    assert driver.wait(0) == SAVING, "it has ended when the hook ends"
    assert pod.file("rlhf").read_text() == "saved, True", "nobody asks for its report"
    assert other.poll() is None and not pod.marker.exists()


def test_a_pod_without_a_driver_ends_at_once(pod: Processes) -> None:
    other = pod.start("rlhf", "metrics", "--submission-id", "drive")
    pod_ending.main()
    assert other.poll() is None and not pod.marker.exists()
