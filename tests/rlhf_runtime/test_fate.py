"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

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
        gone, _ = psutil.wait_procs([started], 30)
        assert gone == [started]
    finally:
        if started.is_running():
            started.kill()


def test_a_process_whose_owner_is_gone_does_not_begin() -> None:
    somebody_else = {RAYLET: str(os.getpid() + 1)}
    words = [*sharing_fate(), sys.executable, "-c", "print('begun')"]
    ended = subprocess.run(words, env=os.environ | somebody_else, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_what_is_run_keeps_its_words_and_its_end() -> None:
    words = [*sharing_fate(), sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", "a 'b'"]
    ours = {RAYLET: str(os.getpid())}
    ended = subprocess.run(words, env=os.environ | ours, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (1, "a 'b'\n")
