"""What a report takes over of what a driver says."""

from __future__ import annotations

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.report import RunPhase, StatusReport
from rlhf_runtime.telemetry.status_board import HEARTBEAT_SECONDS, LONGEST_MESSAGE, StatusBoard


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("one\n  two\t three", "one two three"),
        ("got data/\udcff.parquet", "got data/?.parquet"),  # as Python names a file of latin-1
        ("x" * (LONGEST_MESSAGE + 1), "x" * LONGEST_MESSAGE),
        ("ключ 🗝", "ключ 🗝"),
    ],
)
def test_a_message_is_a_line_that_every_reader_takes(said: str, told: str) -> None:
    final = StatusBoard("sort", "sort-1-0").end(
        RunPhase.FAILED, ExitCode.USER, "DataNotFound", said
    )
    assert (final.message, final.exit_code) == (told, ExitCode.USER)
    sent = final.model_dump_json(by_alias=True, exclude_none=True)
    assert StatusReport.model_validate_json(sent.encode()) == final


def test_a_success_leaves_no_time_even_if_steps_are_left() -> None:
    for phase, seconds in ((RunPhase.SUCCEEDED, 0), (RunPhase.FAILED, 60)):
        board = StatusBoard("sort", "sort-1-0")
        board.update(step=6, total_steps=9, seconds_remaining=60)
        final = board.end(phase, ExitCode.DONE)
        assert (final.step, final.total_steps, final.seconds_remaining) == (6, 9, seconds)


def test_a_driver_that_waits_for_its_workers_makes_a_report_now_and_then() -> None:
    now = [100.0]
    board = StatusBoard("sort", "sort-1-0", clock=lambda: now[0])
    first = board.latest
    board.beat()
    assert board.latest == first, "it is new"
    now[0] += HEARTBEAT_SECONDS
    board.beat()
    second = board.latest
    assert second.sequence == first.sequence + 1
    assert second.heartbeat_seconds == HEARTBEAT_SECONDS
    board.beat()
    assert board.latest == second
    board.end("done", ExitCode.DONE)
    now[0] += HEARTBEAT_SECONDS
    board.beat()
    assert board.latest.final, "nothing follows the last one"
