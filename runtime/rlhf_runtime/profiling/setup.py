"""The settings of the processes that measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_api.spec.resources import Device
from rlhf_runtime.profiling.subjects import Subject


@dataclass(frozen=True)
class Setup:
    """The settings of every process."""

    subjects: tuple[Subject, ...]
    device: Device
    ranks: int
    threads: int
    folder: Path
    """An empty folder for their files."""
    cpu_seconds: bool = False
    """True: CPU time of the process instead of wall time, for benchmarks of one thread on a busy
    machine."""
