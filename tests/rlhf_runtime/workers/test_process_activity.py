"""A process that works is ahead of itself, one that waits is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlhf_runtime.workers.activity import ProcessActivity, process_activity


@pytest.mark.parametrize(
    ("later", "works"),
    [
        (ProcessActivity(7.0, 0), False),
        (ProcessActivity(7.4, 0), False),
        (ProcessActivity(7.6, 0), True),
        (ProcessActivity(7.0, 10 << 15), False),
        (ProcessActivity(7.0, 10 << 17), True),
    ],
)
def test_a_little_is_nothing(later: ProcessActivity, works: bool) -> None:
    assert later.has_advanced_since(ProcessActivity(7.0, 0), seconds=10.0) is works


def test_computing_counts() -> None:
    before = process_activity()
    while not (after := process_activity()).has_advanced_since(before, seconds=1.0):
        sum(range(100_000))
    assert after.cpu_seconds > before.cpu_seconds


def test_what_a_descendant_writes_counts() -> None:
    program = "open('/dev/null', 'wb').write(bytes(1 << 22)); print(flush=True); input()"
    before = process_activity()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        assert process_activity().num_bytes - before.num_bytes >= 1 << 22
        child.stdin.close()
