"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from rlhf_runtime.end_with_parent import RAYLET, idle_command

from ..waiting import wait_until

OWNER = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], env=os.environ | {"RAY_RAYLET_PID": str(os.getpid())})
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process that has started an idle one, and whose number it prints."""
    words = [sys.executable, "-c", OWNER, *idle_command()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_an_idle_process_takes_no_cpu_time_and_ends_when_its_owner_is_killed(
    owner: subprocess.Popen[str],
) -> None:
    assert owner.stdout is not None
    started = psutil.Process(int(owner.stdout.readline()))
    try:
        with pytest.raises(psutil.TimeoutExpired):
            started.wait(1.0)
        assert sum(started.cpu_times()[:2]) < 0.3
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


def test_an_idle_process_whose_owner_is_gone_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as owner:
        pass
    environment = os.environ | {RAYLET: str(owner.pid)}
    assert subprocess.run(idle_command(), env=environment, timeout=30).returncode == 0


def begin(raylet: int) -> str:
    """Run `end_with_raylet` in a process that this one has started; returns what it writes."""
    imported = "from rlhf_runtime.end_with_parent import end_with_raylet"
    code = f"{imported}; end_with_raylet(); print('goes on')"
    environment = os.environ | {RAYLET: str(raylet)}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)


def test_a_worker_that_another_process_starts_for_a_living_raylet_goes_on() -> None:
    assert begin(os.getppid()) == "goes on\n"


def test_a_worker_of_a_raylet_that_is_gone_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as raylet:
        pass
    assert begin(raylet.pid) == ""
