"""The end of a log, and what is added to it later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlhf_cli.cluster.run_files import RunFile, RunFiles

BLOCK_BYTES: Final = 1 << 16
MOST_AT_ONCE: Final = 1 << 24
"""Bytes that are asked for at once."""


@dataclass(frozen=True)
class LogFile:
    """A log, by the folder that it lies in."""

    files: RunFiles
    path: str

    def find(self) -> RunFile | None:
        """The file as it is now; None where there is none."""
        return next((file for file in self.files.list([self.path]) if file.path == self.path), None)

    def read(self, offset: int, length: int) -> bytes:
        """A part of it."""
        return b"".join(self.files.read(self.path, offset, length))


def start_of_tail(log: LogFile, size: int, lines: int) -> int:
    """The offset at which the last lines of a log begin.

    Args:
        size: how long it is, in bytes.
        lines: how many lines are wanted; a last one without a line break counts.
    """
    if lines == 0:
        return size
    end, wanted = size, lines
    while end > 0:
        begin = max(0, end - BLOCK_BYTES)
        block = log.read(begin, end - begin)
        breaks = [index for index, byte in enumerate(block) if byte == 0x0A]
        if end == size and breaks and breaks[-1] == len(block) - 1:
            breaks.pop()  # it ends the last line, and begins none
        if len(breaks) >= wanted:
            return begin + breaks[-wanted] + 1
        wanted -= len(breaks)
        end = begin
    return 0


class Tail:
    """Reads a log from some place on, again and again, without repeating itself."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def news(self, log: LogFile) -> bytes:
        """What was added since the last time; a log that is shorter now is another one."""
        found = log.find()
        if found is None:
            return b""
        if found.size < self._offset:
            self._offset = 0
        pieces = []
        while self._offset < found.size:
            piece = log.read(self._offset, min(found.size - self._offset, MOST_AT_ONCE))
            if not piece:
                break
            pieces.append(piece)
            self._offset += len(piece)
        return b"".join(pieces)
