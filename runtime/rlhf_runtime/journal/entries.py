"""Lines of the journal's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

Key = tuple[str | int, ...]
"""Identifies a question within its step, such as by call, row and reward."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An answer."""

    key: Key
    question: str
    """Digest of the question."""
    answer: Any
    """A JSON value."""

    def to_line(self) -> bytes:
        """Serialize, with a checksum."""
        value = [list(self.key), self.question, self.answer]
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        return b"%08x %s\n" % (crc32(text), text)


def read_entries(content: bytes) -> Iterator[Entry | None]:
    """Read the lines of a file; None for incomplete and damaged ones."""
    for line in content.splitlines():
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % crc32(text):
            key, question, answer = json.loads(text)
            yield Entry(tuple(key), question, answer)
        else:
            yield None
