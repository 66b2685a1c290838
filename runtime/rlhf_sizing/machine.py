"""The memory of this machine."""

from __future__ import annotations

import re
from pathlib import Path

from rlhf_flow.errors import DevicesUnknown


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that all processes of this machine, or of this container, can use together.

    Args:
        root: of the file system; another one in tests.

    Raises:
        DevicesUnknown: the machine does not report it.
    """
    meminfo = root / "proc/meminfo"
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        raise DevicesUnknown(
            f"the machine's memory is unknown: got no MemTotal in {meminfo}; give a pool with "
            "memoryPerDevice"
        )
    total = int(match.group(1)) * 1024
    # A container's limit, by cgroups of version 2 or 1; without a limit version 2 says "max".
    limits = [
        root / "sys/fs/cgroup/memory.max",
        root / "sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    for limit in limits:
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            total = min(total, int(text))
    return total
