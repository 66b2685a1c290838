"""The operator's log lines: JSON objects or text."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from rlhf_api.status import RLHFJobStatus
from rlhf_operator.config import LogFormat

FIELDS = ("job", "attempt", "step", "reason")
"""Extra fields of a line."""


def job_fields(namespace: str, job: str, status: RLHFJobStatus, reason: str) -> dict[str, Any]:
    """Return the extra fields of a line about a job.

    Args:
        reason: stable word for programs.
    """
    fields = {"job": f"{namespace}/{job}", "attempt": status.attempts, "reason": reason}
    return fields if status.progress is None else {**fields, "step": status.progress.step}


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
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
    """Time, level, job and text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(job)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line, and the lines of its exception."""
        job = getattr(record, "job", "")
        record.job = f"[{job}] " if job else ""
        return super().format(record)


def set_up_logs(level: str, form: LogFormat) -> None:
    """Log to stderr; libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    # force: libraries may have added handlers at their import.
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("kopf", "urllib3", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    # kopf warns at its start that it does not handle signals, which is intended here.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
