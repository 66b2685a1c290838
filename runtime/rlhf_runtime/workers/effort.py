"""What a process has computed, read, written and sent: progress where nothing else shows it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

CPU_SHARE = 0.05
"""Of one core: below it a process only keeps itself alive."""
BYTES_PER_SECOND = 1 << 16
LOOPBACK_INTERFACE = "lo"
UNKNOWN = (psutil.Error, AttributeError, OSError, RuntimeError, ValueError)
"""What psutil raises where a process has ended, or the system does not count."""


@dataclass(frozen=True)
class Effort:
    """Of a process and of those that it has started."""

    cpu_seconds: float
    num_bytes: int
    """Read from storage, written to files, and what the machine (in a pod: the pod) has sent and
    received: the system does not count it by process."""

    def is_ahead_of(self, earlier: Effort, seconds: float) -> bool:
        """Whether it has worked in the seconds since."""
        cpu_seconds = self.cpu_seconds - earlier.cpu_seconds
        num_bytes = self.num_bytes - earlier.num_bytes
        return cpu_seconds > CPU_SHARE * seconds or num_bytes > BYTES_PER_SECOND * seconds


def own_effort() -> Effort:
    """This process's, with its descendants'."""
    this = psutil.Process()
    cpu_seconds, num_bytes = 0.0, _network_bytes()
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
            cpu_seconds += times.user + times.system
            cpu_seconds += times.children_user + times.children_system  # of those that have ended
            counters = process.io_counters()
            num_bytes += counters.read_bytes + counters.write_chars
        except UNKNOWN:
            continue
    return Effort(cpu_seconds, num_bytes)


def _network_bytes() -> int:
    try:
        interfaces = psutil.net_io_counters(pernic=True)
    except UNKNOWN:
        return 0
    return sum(
        counters.bytes_sent + counters.bytes_recv
        for name, counters in interfaces.items()
        if name != LOOPBACK_INTERFACE
    )
