"""The driver's own words, kept in the run's folder beside those of its workers."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO


class DriverLog(io.TextIOBase):
    """Stands in for stderr: what is written there also goes into a file, once there is one.

    A job that is refused leaves no file. Trouble with the file stops nobody.
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
        """Append everything from now on, and what was written before, to a file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            self.write(f"the driver's log cannot be kept at {path}: {error}\n")
            return
        before, self._file = self._file, file
        if isinstance(before, io.StringIO):
            self._keep(before.getvalue())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of stderr."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Of stderr."""
        return self._stream.errors

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether stderr is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write to both."""
        self._keep(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush stderr; the file always is."""
        self._stream.flush()

    def _keep(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._file.write(text)
            self._file.flush()
