"""Memory of a program with all its children, sampled from outside."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# A sample reads every page table of the processes: more often, it would slow what it measures.
SECONDS_BETWEEN_SAMPLES = 1.0
LOG_LINES = 20


@dataclass(frozen=True)
class Finished:
    """Result of a program that succeeded."""

    output: str
    """Standard output."""
    peak_mebibytes: float
    # Not the resident set size, in which shared pages would count once per process.
    """Largest proportional set size of the program and its descendants."""
    largest_process_mebibytes: float
    """Largest resident set size that one of these processes ever had."""


def run_and_weigh(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a program to its end, stderr into `log`.

    Raises:
        RuntimeError: it failed; the message has the end of the log.
    """
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        ended = threading.Event()
        peaks = _Peaks()
        watcher = threading.Thread(target=_watch, args=(process.pid, ended, peaks), daemon=True)
        watcher.start()
        output, _ = process.communicate()
        ended.set()
        watcher.join()
    if process.returncode != 0:
        # In the message, because the log often lies in a temporary folder.
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{end_of(log)}")
    return Finished(output, peaks.total / 2**20, peaks.process / 2**20)


def end_of(log: Path) -> str:
    """Last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


@dataclass
class _Peaks:
    """Bytes; of the whole tree at once, and of one process."""

    total: float = 0.0
    process: float = 0.0


def _watch(pid: int, ended: threading.Event, peaks: _Peaks) -> None:
    while not ended.wait(SECONDS_BETWEEN_SAMPLES):
        total = 0.0
        for member in _members(pid):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
                total += member.memory_full_info().pss
                peaks.process = max(peaks.process, _high_water_mark(member.pid))
        peaks.total = max(peaks.total, total)


def _members(pid: int) -> list[psutil.Process]:
    """The process and its descendants; none if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _high_water_mark(pid: int) -> float:
    """Largest resident bytes of a process so far. The kernel counts it between samples, too."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE) or ["0"]
    return 1024.0 * int(kibibytes)
