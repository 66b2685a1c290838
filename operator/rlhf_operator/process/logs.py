"""The operator's log lines: objects for machines, or text for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from rlhf_operator.config import LogFormat

FIELDS = ("job", "reason")
"""What a line may carry besides its text."""


class JsonLines(logging.Formatter):
    """An object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Time, level, job, text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(job)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """One line, or more with an exception."""
        job = getattr(record, "job", "")
        record.job = f"[{job}] " if job else ""
        return super().format(record)


def set_up_logs(level: str, form: LogFormat) -> None:
    """Write everything to stderr; kopf's own lines only from warnings on, and of its start and end
    only errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("kopf", "urllib3", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    # It warns of what is meant: that signals are not its own.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
