"""A limit of the size of a process's log file."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 64 << 20
"""Size from which a log loses its middle."""
KEPT_HEAD = 1 << 20
"""Bytes that stay at the start, with the messages of the start-up."""
KEPT_TAIL = 16 << 20
"""Bytes that stay at the end."""
CHECK_SECONDS = 1.0


def limit_log(log_file: Path) -> None:
    """Keep a log file below its limit, from a thread of this process.

    The file must be open for appending: then every process that has inherited it writes at its end.
    """

    def watch() -> None:
        while True:
            # A full or lost disk is reported by whatever needs the disk.
            with suppress(OSError):
                drop_middle(log_file)
            time.sleep(CHECK_SECONDS)

    threading.Thread(target=watch, name="log-limit", daemon=True).start()


def drop_middle(
    log_file: Path, limit: int = MAX_BYTES, head: int = KEPT_HEAD, tail: int = KEPT_TAIL
) -> None:
    """Remove complete lines from the middle of a file that is too large; say so in their place.

    What others write while this runs may be lost.
    """
    size = log_file.stat().st_size
    if size <= limit:
        return
    with log_file.open("r+b") as file:
        first = file.read(head)
        first = first[: first.rfind(b"\n") + 1]
        file.seek(size - tail)
        last = file.read(tail)
        last = last[last.find(b"\n") + 1 :]
        left_out = size - len(first) - len(last)
        file.seek(len(first))
        file.write(b"[%d bytes were removed: the log is limited to %d]\n" % (left_out, limit))
        file.write(last)
        file.truncate()
