"""What the processes that measure are told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_api.spec.resources import Device
from rlhf_runtime.profiling.subjects import Subject


@dataclass(frozen=True)
class Setup:
    """What every process is told."""

    subjects: tuple[Subject, ...]
    device: Device
    ranks: int
    threads: int
    folder: Path
    """Empty, for what they need of files."""
    cpu_seconds: bool = False
    """Whether seconds are those in which the process computed, and not those of the wall clock:
    for benchmarks of one thread on a machine that does something else, too."""
