"""What a process has computed, read and written so far: progress where nothing else shows it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

CPU_SHARE = 0.05
"""Of one core: below it a process only keeps itself alive."""
BYTES_PER_SECOND = 1 << 16


@dataclass(frozen=True)
class Effort:
    """Of a process and of those that it has started."""

    cpu_seconds: float
    num_bytes: int
    """Read from storage, and written to anything."""

    def is_ahead_of(self, earlier: Effort, seconds: float) -> bool:
        """Whether it has worked in the seconds since."""
        cpu_seconds = self.cpu_seconds - earlier.cpu_seconds
        num_bytes = self.num_bytes - earlier.num_bytes
        return cpu_seconds > CPU_SHARE * seconds or num_bytes > BYTES_PER_SECOND * seconds


def own_effort() -> Effort:
    """This process's, with its descendants'."""
    this = psutil.Process()
    cpu_seconds, num_bytes = 0.0, 0
    for process in [this, *this.children(recursive=True)]:
        try:
            times, counters = process.cpu_times(), process.io_counters()
        except psutil.Error:  # it has ended meanwhile
            continue
        cpu_seconds += times.user + times.system
        num_bytes += counters.read_bytes + counters.write_chars
    return Effort(cpu_seconds, num_bytes)
