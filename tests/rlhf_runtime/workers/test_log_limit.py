"""Logs of processes stay below their limit, whatever is printed."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_runtime.workers.log_limit import drop_middle


def test_a_large_log_loses_complete_lines_of_its_middle(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    lines = [f"line {number:03d}\n" for number in range(100)]
    log.write_text("".join(lines))
    before = log.read_text()
    drop_middle(log, limit=900, head=25, tail=95)
    assert log.read_text() == before, "not above the limit"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    drop_middle(log, limit=899, head=25, tail=95)
    os.write(descriptor, b"later\n")
    os.close(descriptor)
    assert log.read_text().splitlines(keepends=True) == [
        *lines[:2],
        "[792 bytes were removed: the log is limited to 899]\n",
        *lines[-10:],
        "later\n",
    ]


def test_a_log_of_one_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"x" * 1000)
    drop_middle(log, limit=100, head=10, tail=20)
    assert log.stat().st_size < 100
