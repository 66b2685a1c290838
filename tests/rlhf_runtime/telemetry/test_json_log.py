"""Lines of drivers and workers are JSON objects where the operator asks for them."""

from __future__ import annotations

import io
import json
import logging
import sys
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlhf_api.on_cluster import LOG_FIELDS_VARIABLE
from rlhf_runtime.telemetry.json_log import (
    STEP,
    Fields,
    JsonLines,
    LineStream,
    json_stderr,
    log_fields,
)
from rlhf_runtime.workers.activity import Activity

FIELDS: Fields = {"job": "team/sort", "attempt": 2}


def read(text: str) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_are_text_unless_the_variable_is_set() -> None:
    assert log_fields({}) is None and log_fields({LOG_FIELDS_VARIABLE: ""}) is None
    assert log_fields({LOG_FIELDS_VARIABLE: json.dumps(FIELDS)}) == FIELDS
    with pytest.raises(ValueError, match="JSON object"):
        log_fields({LOG_FIELDS_VARIABLE: "[1]"})


def test_everything_that_a_driver_writes_has_job_attempt_and_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr, steps = io.StringIO(), iter([0, 7, 7, 8])
    monkeypatch.setattr(sys, "stderr", stderr)
    with json_stderr(FIELDS, lambda: next(steps)):
        print("it starts", file=sys.stderr)
        sys.stderr.write("step 7\n\nreward")
        sys.stderr.write(" 0.5\n")
        try:
            raise OSError("full")
        except OSError:
            logging.getLogger("storage").exception("cannot save to %s", "/p")
    assert sys.stderr is stderr
    first, second, third, fourth = read(stderr.getvalue())
    assert first["message"] == "it starts" and first["level"] == "info"
    assert (first["job"], first["attempt"], first["step"]) == ("team/sort", 2, 0)
    assert (second["message"], second["step"]) == ("step 7", 7)
    assert third["message"] == "reward 0.5"
    assert fourth["message"] == "cannot save to /p" and fourth["logger"] == "storage"
    assert fourth["exception"].endswith("OSError: full") and fourth["step"] == 8


def test_a_line_without_an_end_is_logged_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with json_stderr(FIELDS, lambda: None):
        sys.stderr.write("cut off")
        assert stderr.getvalue() == ""
    (line,) = read(stderr.getvalue())
    assert line["message"] == "cut off" and "step" not in line


def test_an_error_of_the_log_itself_does_not_go_round_in_circles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with json_stderr(FIELDS, lambda: None):
        assert sys.stderr.write("lost\n") == 5


def test_a_workers_lines_have_the_step_of_its_call() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines({**FIELDS, "worker": "rank-0"}))
    logger = logging.Logger("worker")
    logger.addHandler(handler)
    logger.info("it loads")
    with Activity().during("actor.generate", 12):
        logger.warning("slow")
        with Activity().during("reward.score", 13):
            logger.info("inner")
        logger.info("outer")
    assert STEP.get() is None
    lines = read(stream.getvalue())
    assert [line.get("step") for line in lines] == [None, 12, 13, 12]
    assert lines[1]["level"] == "warning" and lines[1]["worker"] == "rank-0"


def test_the_stream_is_one_that_programs_can_write_to() -> None:
    stream = LineStream(logging.Logger("x"))
    assert stream.writable() and not stream.isatty() and stream.encoding == "utf-8"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.flush()


def test_a_thread_that_writes_while_another_one_logs_loses_nothing() -> None:
    messages: list[str] = []
    logger = logging.Logger("x")
    stream = LineStream(logger)

    def write_from_another_thread(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        if len(messages) == 1:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(stream.write, "second\n").result()
        return False

    logger.addFilter(write_from_another_thread)
    stream.write("first\nthird\n")
    assert messages == ["first", "second", "third"]
