"""Memory of a program with all its children, sampled from outside."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
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
        peak = [0.0]
        watcher = threading.Thread(target=_watch, args=(process.pid, ended, peak), daemon=True)
        watcher.start()
        output, _ = process.communicate()
        ended.set()
        watcher.join()
    if process.returncode != 0:
        # In the message, because the log often lies in a temporary folder.
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{end_of(log)}")
    return Finished(output, peak[0] / 2**20)


def end_of(log: Path) -> str:
    """Last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def _watch(pid: int, ended: threading.Event, peak: list[float]) -> None:
    while not ended.wait(SECONDS_BETWEEN_SAMPLES):
        peak[0] = max(peak[0], _tree_bytes(pid))


def _tree_bytes(pid: int) -> float:
    """Bytes of the process and its descendants."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return total
    for member in members:
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended meanwhile
    return total
