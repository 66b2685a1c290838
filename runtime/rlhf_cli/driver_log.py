"""Copy the driver's stderr to a file in the run's folder."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO


class DriverLog(io.TextIOBase):
    """Replaces stderr: copies what is written there to a file, once one is set.

    Before that, text is buffered, so a job that is refused leaves no file. Errors of the file are
    ignored.
    """

    def __init__(self) -> None:
        self._stream: TextIO = sys.stderr
        self._file: TextIO = io.StringIO()

    def __enter__(self) -> Self:
        self._stream = sys.stderr
        sys.stderr = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.stderr = self._stream
        with suppress(OSError):
            self._file.close()

    def keep_at(self, path: Path) -> None:
        """Append the buffered text, and everything written from now on, to a file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            # A driver without a log is better than none.
            self.write(f"the driver's log cannot be kept at {path}: {error}\n")
            return
        before, self._file = self._file, file
        if isinstance(before, io.StringIO):
            self._keep(before.getvalue())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of stderr."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The error mode of stderr."""
        return self._stream.errors

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """True if stderr is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write to stderr and to the file."""
        self._keep(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush stderr; the file is flushed at each write."""
        self._stream.flush()

    def _keep(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._file.write(text)
            self._file.flush()
