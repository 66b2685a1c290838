"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from rlhf_runtime.fate import RAYLET, sharing_fate

from ..waiting import wait_until

FROZEN = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
OWNER = """
import os, subprocess, sys
subprocess.Popen(sys.argv[1:], env=os.environ | {"RAY_RAYLET_PID": str(os.getpid())}).wait()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process that has started one that is frozen, and whose number it prints."""
    words = [sys.executable, "-c", OWNER, *sharing_fate(), sys.executable, "-c", FROZEN]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_frozen_process_ends_when_its_owner_is_killed(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    started = psutil.Process(int(owner.stdout.readline()))
    try:
        wait_until(lambda: started.status() == psutil.STATUS_STOPPED, 30, "a frozen process")
        owner.kill()
        wait_until(lambda: has_ended(started), 30, "its end")
    finally:
        with suppress(psutil.NoSuchProcess):
            started.kill()


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or waits to be reaped by whoever adopts orphans here."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def begin(owner: int) -> str:
    """What a process writes that is to share another's fate."""
    words = [*sharing_fate(), sys.executable, "-c", "print('begun')"]
    environment = os.environ | {RAYLET: str(owner)}
    return subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True).stdout


def test_a_process_whose_owner_is_gone_does_not_begin() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as owner:
        pass
    assert begin(owner.pid) == ""


def test_one_that_somebody_else_has_started_for_a_living_owner_begins() -> None:
    assert begin(os.getppid()) == "begun\n"


def test_what_is_run_keeps_its_words_and_its_end() -> None:
    words = [*sharing_fate(), sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", "a 'b'"]
    ours = {RAYLET: str(os.getpid())}
    ended = subprocess.run(words, env=os.environ | ours, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (1, "a 'b'\n")
