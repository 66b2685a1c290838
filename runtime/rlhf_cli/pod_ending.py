"""Lets the driver of a head pod save before the pod ends: the pod's preStop hook.

python -P -m rlhf_cli.pod_ending
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rlhf_api.on_cluster import POD_ENDING_FILE, driver_command

PROCESSES = Path("/proc")


def main() -> None:
    """Ask the drivers of this pod to save and end, and wait for their end."""
    # The kubelet limits the time: at the end of the grace period it kills the pod.
    marker = Path(POD_ENDING_FILE)
    marker.touch()
    try:
        stop_drivers()
    finally:
        # A container may be started again in the same pod.
        marker.unlink(missing_ok=True)


def stop_drivers() -> None:
    """Send SIGTERM to every driver, and wait until all have ended."""
    descriptors = []
    for process in find_drivers():
        with suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(process))
    for descriptor in descriptors:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    for descriptor in descriptors:
        # Readable when the process has ended.
        select.select([descriptor], [], [])
        os.close(descriptor)


def find_drivers() -> list[int]:
    """Return the ids of the processes that run `rlhf drive`."""
    found = []
    for folder in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if _is_driver([os.fsdecode(argument) for argument in arguments]):
                found.append(int(folder.name))
    return found


def _is_driver(arguments: Sequence[str]) -> bool:
    # The interpreter may precede the command, and the command may have a path.
    command = driver_command("")[:2]
    names = [Path(argument).name for argument in arguments[:3]]
    return any(names[start : start + 2] == command for start in range(2))


if __name__ == "__main__":
    main()
