"""The report over HTTP: who may read it, and who may say that it was read."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.report import RunPhase, StatusReport
from rlhf_runtime.bounded_wait import BoundedWait
from rlhf_runtime.telemetry.errors import ReportPortInUse
from rlhf_runtime.telemetry.status_board import StatusBoard
from rlhf_runtime.telemetry.status_server import StatusServer

LOOPBACK = "127.0.0.1"
TOKEN = {"Authorization": "Bearer secret"}


def ignore(_text: str) -> None:
    """Nobody listens."""


NOW = BoundedWait(0.0, ignore)


@pytest.fixture
def board() -> StatusBoard:
    return StatusBoard("sort", "sort-1-0")


@pytest.fixture
def address(board: StatusBoard) -> Iterator[str]:
    server = StatusServer(board, "secret")
    try:
        yield f"http://{LOOPBACK}:{server.open(LOOPBACK, 0, NOW)}"
    finally:
        server.close()


def ask(url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """The status of the answer and its body; `headers` without any means the right token."""
    request = urllib.request.Request(
        url, data=body, headers=headers or TOKEN, method="GET" if body is None else "POST"
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        answer: HTTPResponse
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def acknowledgement(submission: object, sequence: object) -> bytes:
    return json.dumps({"submissionId": submission, "sequence": sequence}).encode()


def test_the_latest_report_is_served(board: StatusBoard, address: str) -> None:
    board.update(step=3, total_steps=10, phase="Train", metrics={"reward/mean": 0.5})
    status, body = ask(f"{address}/report")
    assert status == 200 and StatusReport.model_validate_json(body) == board.latest
    assert json.loads(body)["totalSteps"] == 10, "by the names of the wire"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (TOKEN, 200),
        ({"X-Ray-Authorization": "Bearer secret"}, 200),
        ({"Authorization": "Bearer wrong", "X-Ray-Authorization": "Bearer secret"}, 200),
        ({"Authorization": "Bearer secrets"}, 401),
        ({"Authorization": "secret"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Accept": "*/*"}, 401),
    ],
)
def test_only_who_knows_the_token_reads_it(
    address: str, headers: dict[str, str], status: int
) -> None:
    answered, body = ask(f"{address}/report", **headers)
    assert answered == status and (status == 200 or body == b"")
    assert ask(f"{address}/acknowledge", acknowledgement("x", 1), **headers)[0] in (409, status)


def test_without_a_token_nobody_knows_it(board: StatusBoard) -> None:
    server = StatusServer(board, "")
    try:
        port = server.open(LOOPBACK, 0, NOW)
        status, _ = ask(f"http://{LOOPBACK}:{port}/report", Authorization="Bearer ")
    finally:
        server.close()
    assert status == 401


def test_health_needs_no_token_and_tells_nothing(address: str) -> None:
    assert ask(f"{address}/healthz", Accept="*/*") == (200, b"ok")
    assert ask(f"{address}/elsewhere")[0] == 404


def test_the_acknowledgement_of_the_final_report_ends_the_wait(
    board: StatusBoard, address: str
) -> None:
    final = board.end(RunPhase.SUCCEEDED, ExitCode.DONE)
    body = acknowledgement("sort-1-0", final.sequence)
    assert ask(f"{address}/acknowledge", body) == (204, b"")
    assert board.wait_until_acknowledged(0.0)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (acknowledgement("sort-1-1", 1), 409),
        (acknowledgement("sort-1-0", 99), 409),
        (acknowledgement("sort-1-0", True), 400),
        (acknowledgement(None, 1), 400),
        (b"not json", 400),
        (b"[]", 400),
        (b"[" * 4000, 400),
        (b"x" * 5000, 400),
    ],
)
def test_what_is_no_acknowledgement_of_this_submission_is_refused(
    board: StatusBoard, address: str, body: bytes, status: int
) -> None:
    board.end(RunPhase.SUCCEEDED, ExitCode.DONE)
    assert ask(f"{address}/acknowledge", body)[0] == status
    assert not board.wait_until_acknowledged(0.0)


def test_a_port_that_becomes_free_is_taken(board: StatusBoard) -> None:
    holder = socket.create_server((LOOPBACK, 0))
    port = holder.getsockname()[1]
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        holder.close()

    server = StatusServer(board, "secret")
    try:
        assert server.open(LOOPBACK, port, BoundedWait(60.0, tell, poll_seconds=0.05)) == port
        assert ask(f"http://{LOOPBACK}:{port}/report")[0] == 200
    finally:
        server.close()
    assert told == [f"port {port}: address already in use"]


def test_a_port_that_stays_taken_is_an_error_worth_another_try(board: StatusBoard) -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ReportPortInUse, match=f"port {port}: address already in use") as taken:
            StatusServer(board, "secret").open(LOOPBACK, port, NOW)
    assert taken.value.exit_code is ExitCode.RETRIABLE
