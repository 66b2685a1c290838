"""Output of conversations' processes: logged up to a limit; its last lines are kept for errors."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from logging import Logger

# Lines in the message about an exited process.
LAST_LINES = 20
# A longer line is logged in pieces.
MAX_LINE_BYTES = 2000
# Limit of the logged lines of all processes together.
MAX_LINES_PER_MINUTE = 1000
_CHUNK_BYTES = 1 << 16
# Chunks that are read from an ended process: another one may still write.
_MAX_LAST_CHUNKS = 64


class LineLimit:
    """A log that takes a limited number of lines per minute."""

    def __init__(self, logger: Logger, title: str) -> None:
        self._logger = logger
        self._title = title
        self._minute_end, self._num_lines = 0.0, 0

    def write(self, pid: int, line: bytes) -> None:
        """Log a line of a process, unless there were too many."""
        if time.monotonic() >= self._minute_end:
            self._minute_end, self._num_lines = time.monotonic() + 60, 0
        self._num_lines += 1
        if self._num_lines <= MAX_LINES_PER_MINUTE:
            self._logger.info("%s[%d]: %s", self._title, pid, _text(line))
        elif self._num_lines == MAX_LINES_PER_MINUTE + 1:
            self._logger.info(
                "%s printed %d lines in a minute; further lines of this minute are left out",
                *(self._title, MAX_LINES_PER_MINUTE),
            )


class Output:
    """The output of one process. Belongs to the event loop that has made it.

    ended: set once nobody can write to it, or it is closed.
    """

    def __init__(self, descriptor: int, pid: int, log: LineLimit) -> None:
        """Read the descriptor from now on; it is closed by `close`.

        Args:
            descriptor: the readable end of a pipe.
            pid: id of the process, for the log.
            log: gets its lines.
        """
        self.pid = pid
        self._descriptor = descriptor
        self._log = log
        self._rest = b""
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._is_open = True
        self.ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        # One chunk at a time, so that a process that floods it delays nobody.
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def last_lines(self) -> str:
        """Return the end of the output, for messages; empty without output."""
        for _ in range(_MAX_LAST_CHUNKS):
            if not self._is_open or not self._read():
                break
        lines = map(_text, [*self._last, *([self._rest] if self._rest else [])])
        text = "\n".join(lines)
        return "; it last printed:\n" + text if text else ""

    def close(self) -> None:
        """Stop reading."""
        if self._is_open:
            self._is_open = False
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> bool:
        """Read a chunk; False if there is none now."""
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        for line in lines:
            for start in range(0, max(len(line), 1), MAX_LINE_BYTES):
                self._write(line[start : start + MAX_LINE_BYTES])
        return True

    def _write(self, line: bytes) -> None:
        self._last.append(line)
        self._log.write(self.pid, line)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()
