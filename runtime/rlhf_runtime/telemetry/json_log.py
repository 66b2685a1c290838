"""Log lines as JSON objects, where the operator asks for them.

Log collectors of a cluster read a line as an object with fields, such as the job's name and the
step. The records are those of standard logging, so libraries' lines have the same fields.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from rlhf_api.on_cluster import LOG_FIELDS_VARIABLE

Fields = Mapping[str, str | int]
STEP: ContextVar[int | None] = ContextVar("step", default=None)
"""Step of the call that the current thread runs. None: it runs none."""


def log_fields(environment: Mapping[str, str]) -> Fields | None:
    """Return the fields of every line. None: lines are text.

    Args:
        environment: this process's variables.

    Raises:
        ValueError: the variable is no JSON object.
    """
    text = environment.get(LOG_FIELDS_VARIABLE)
    if not text:
        return None
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"{LOG_FIELDS_VARIABLE}: got {text!r}, allowed a JSON object")
    return fields


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, the given fields, the step."""

    def __init__(self, fields: Fields, step: Callable[[], int | None] = STEP.get) -> None:
        super().__init__()
        self._fields = fields
        self._step = step

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        line: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        if (step := self._step()) is not None:
            line["step"] = step
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class LineStream(io.TextIOBase):
    """A text stream whose lines become records of a logger. Its methods may be called from any
    thread."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._begun = ""
        self._lock = threading.Lock()
        # True in a thread that logs.
        self._thread = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """utf-8."""
        return "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """backslashreplace."""
        return "backslashreplace"

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Log all complete lines; the rest waits for its end. Empty lines are left out."""
        # Logging reports an error of its own stream here: it would go round in circles.
        if getattr(self._thread, "is_logging", False):
            return len(text)
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
        self._log(lines)
        return len(text)

    def end(self) -> None:
        """Log a line that has no end yet."""
        with self._lock:
            rest, self._begun = self._begun, ""
        self._log([rest])

    def _log(self, lines: list[str]) -> None:
        # Without the lock: a handler of another thread may hold its own, and write an error here.
        self._thread.is_logging = True
        try:
            for line in lines:
                if line.strip():
                    self._logger.info("%s", line.rstrip())
        finally:
            self._thread.is_logging = False


@contextmanager
def json_stderr(fields: Fields, step: Callable[[], int | None]) -> Iterator[None]:
    """Write all lines that go to stderr, and all log records, as JSON objects to it.

    Args:
        fields: of every line.
        step: returns the current step.
    """
    stderr: TextIO = sys.stderr
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(JsonLines(fields, step))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    stream = LineStream(logging.getLogger("rlhf"))
    sys.stderr = stream
    try:
        yield
    finally:
        stream.end()
        sys.stderr = stderr
        root.handlers[:] = before
        root.setLevel(level)
