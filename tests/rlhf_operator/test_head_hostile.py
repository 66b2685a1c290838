"""Answers that no honest head gives: the operator survives them, and keeps its secrets."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator

import pytest

from rlhf_operator.clients.head.addresses import Address
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import JOBS_BYTES, HttpHead
from rlhf_operator.clients.head.protocol import HeadRefused, HeadUnreachable

from .awaited import PlainHead, now
from .hostile_server import HostileServer, answer, drip, endless, hostile_server

pytestmark = pytest.mark.slow

TOKEN = "a-token-that-nobody-may-see"
CLUSTER_SECRET = "the-api-servers-credential"
IMPATIENT_SECONDS = 1.0
"""The timeout where an answer is late on purpose."""
PATIENT_SECONDS = 60.0
"""The timeout where the answer comes at once, on a machine that may be busy."""
LATE_SECONDS = 20.0
"""By when even a busy machine has noticed that an answer is late."""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNBOUNDED = b"HTTP/1.1 200 OK\r\n\r\n"

Blocks = Callable[[], Iterable[bytes]]


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient(answer_seconds=PATIENT_SECONDS)
    yield client
    now(client.close())


@pytest.fixture
def impatient() -> Iterator[HttpClient]:
    client = HttpClient(answer_seconds=IMPATIENT_SECONDS)
    yield client
    now(client.close())


def address_of(url: str, proxied: bool = False) -> Address:
    headers = {"X-Ray-Authorization": f"Bearer {TOKEN}", "Authorization": CLUSTER_SECRET}
    return Address(url, headers, proxied)


def head_at(server: HostileServer, client: HttpClient, proxied: bool = False) -> PlainHead:
    address = address_of(server.url, proxied)
    return PlainHead(HttpHead(client, address, address))


def attempts(head: PlainHead) -> list[Callable[[], object]]:
    return [
        head.submissions,
        head.report,
        lambda: head.submit("job-0-0", ["true"], {}),
        lambda: head.stop("job-0-0"),
        lambda: head.final_report("job-0-0"),
        lambda: head.acknowledge("job-0-0", 0),
    ]


def job(**changes: object) -> dict[str, object]:
    return {"type": "SUBMISSION", "submission_id": "job-0-0", "status": "RUNNING"} | changes


MALFORMED = {
    "nothing": b"",
    "no JSON": b"<html>504</html>",
    "no UTF-8": b'"\xff\xfe"',
    "half of it": json.dumps([job()]).encode()[:-4],
    "another type": b'"RUNNING"',
    "null": b"null",
    "nested deeply": b"[" * 100_000,
    "no status": json.dumps([{"type": "SUBMISSION", "submission_id": "job-0-0"}]).encode(),
    "no id": json.dumps([job(submission_id=None)]).encode(),
    "an unknown status": json.dumps([job(status="DANCING")]).encode(),
    "an exit code in words": json.dumps([job(driver_exit_code="0")]).encode(),
    "an enormous exit code": json.dumps([job(driver_exit_code=10**400)]).encode(),
    "an exit code that is not a number": b'[{"driver_exit_code": NaN}]',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_malformed_is_unreachable(body: bytes, client: HttpClient) -> None:
    with hostile_server(answer(body)) as server:
        head = head_at(server, client)
        for attempt in attempts(head):
            with pytest.raises(HeadUnreachable, match="."):
                attempt()


@pytest.mark.parametrize("status", ["100 Continue", "200 OK", "302 Found", "418 Teapot", "999 X"])
def test_no_status_but_the_right_one_will_do(status: str, client: HttpClient) -> None:
    with hostile_server(answer(b"{}", status, "Location: /api/jobs/")) as server:
        for attempt in attempts(head_at(server, client)):
            with pytest.raises(HeadUnreachable):
                attempt()


def test_the_right_json_about_another_driver_will_not_do(client: HttpClient) -> None:
    body = json.dumps(job(submission_id="job-0-1") | {"stopped": "yes"}).encode()
    with hostile_server(answer(body)) as server:
        for attempt in attempts(head_at(server, client))[2:5]:
            with pytest.raises(HeadUnreachable):
                attempt()


@pytest.mark.parametrize(
    "blocks",
    [
        endless(UNBOUNDED, b"x" * 65536),
        endless(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        endless(CHUNKED, b"1\r\nx\r\n" * 10_000),
        endless(b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 60_000 + b"\r\n"),
        endless(b"", b"x" * 65536),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        answer(b"x" * (32 << 20)),
    ],
    ids=["body", "chunks", "tiny chunks", "headers", "status line", "continue", "huge"],
)
def test_an_answer_without_end_costs_little_memory_and_time(
    blocks: Blocks, impatient: HttpClient
) -> None:
    with hostile_server(blocks) as server:
        head = head_at(server, impatient)
        tracemalloc.start()
        try:
            for attempt in (head.submissions, head.report):
                began = time.monotonic()
                with pytest.raises(HeadUnreachable):
                    attempt()
                assert time.monotonic() - began < LATE_SECONDS
            assert tracemalloc.get_traced_memory()[1] < 4 * JOBS_BYTES
        finally:
            tracemalloc.stop()
        assert server.gone.wait(LATE_SECONDS), "the connection was kept"


@pytest.mark.parametrize(
    ("head", "block"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (UNBOUNDED, b" "),
        (CHUNKED, b"0"),
        (CHUNKED + b"1;", b"x"),
    ],
    ids=["silence", "headers", "body", "size of a chunk", "extension of a chunk"],
)
def test_who_sends_a_byte_now_and_then_does_not_hold_the_operator(
    head: bytes, block: bytes, impatient: HttpClient
) -> None:
    over = threading.Event()
    with hostile_server(drip(head, block, IMPATIENT_SECONDS / 10, over)) as server:
        began = time.monotonic()
        try:
            with pytest.raises(HeadUnreachable, match="time"):
                head_at(server, impatient).submissions()
            assert time.monotonic() - began < LATE_SECONDS
        finally:
            over.set()


def test_an_answer_that_breaks_off_is_unreachable(client: HttpClient) -> None:
    whole = json.dumps([job()]).encode()
    broken = [answer(whole, length=len(whole) + 1), lambda: [CHUNKED, b"ff\r\n", whole]]
    for blocks in broken:
        with hostile_server(blocks) as server, pytest.raises(HeadUnreachable):
            head_at(server, client).submissions()


def test_a_compressed_answer_is_not_opened(client: HttpClient) -> None:
    bomb = gzip.compress(b"[" + b" " * (8 << 20) + b"]")
    with (
        hostile_server(answer(bomb, "200 OK", "Content-Encoding: gzip")) as server,
        pytest.raises(HeadUnreachable, match="compressed"),
    ):
        head_at(server, client).submissions()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 T", "308 P"])
def test_a_redirect_is_not_followed(status: str, client: HttpClient) -> None:
    with hostile_server(answer(b"[]")) as elsewhere:
        there = f"Location: {elsewhere.url}/api/jobs/"
        with hostile_server(answer(b"", status, there)) as server:
            for attempt in attempts(head_at(server, client)):
                with pytest.raises(HeadUnreachable):
                    attempt()
        assert not elsewhere.requests


ECHOES = {
    "body": answer(f"{TOKEN} {CLUSTER_SECRET}".encode(), "500 Oh"),
    "refusal": answer(f"Bearer {TOKEN} is wrong, {CLUSTER_SECRET}".encode(), "403 No"),
    "message": answer(json.dumps([job(status=TOKEN, message=CLUSTER_SECRET)]).encode()),
    "key": answer(json.dumps({TOKEN: 1, CLUSTER_SECRET: 2}).encode()),
    "reason": answer(b"", f"500 {TOKEN}{CLUSTER_SECRET}"),
    "status line": lambda: [f"HTTP/{TOKEN} {CLUSTER_SECRET}\r\n\r\n".encode()],
    "headers": lambda: [f"HTTP/1.1 200 OK\r\n{TOKEN}\r\n {CLUSTER_SECRET}\r\n\r\n".encode()],
    "location": answer(b"", "302 Found", f"Location: http://{TOKEN}/{CLUSTER_SECRET}"),
    "chunk": lambda: [CHUNKED, f"{TOKEN} {CLUSTER_SECRET}\r\n".encode()],
    "encoding": answer(b"[]", "200 OK", f"Content-Encoding: {TOKEN}{CLUSTER_SECRET}"),
}


@pytest.mark.parametrize("blocks", ECHOES.values(), ids=ECHOES.keys())
def test_secrets_that_are_sent_back_are_not_shown(
    blocks: Blocks, client: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with hostile_server(blocks) as server:
        head = head_at(server, client)
        for attempt in attempts(head):
            with pytest.raises((HeadUnreachable, HeadRefused)) as caught:
                attempt()
            shown = f"{caught.getrepr(chain=True, showlocals=False)}{caplog.text}"
            assert TOKEN not in shown and CLUSTER_SECRET not in shown
        assert all(TOKEN.encode() in request for request in server.requests)
        assert TOKEN not in repr(vars(head)) and CLUSTER_SECRET not in repr(vars(head))


def test_what_a_driver_wrote_is_shown_as_one_clean_line(client: HttpClient) -> None:
    said = f"failed:\x1b[2J\x00 \u202e {TOKEN} {'x' * 20_000}\nmore"
    body = json.dumps([job(status="FAILED", message=said, driver_exit_code=3)]).encode()
    with hostile_server(answer(body)) as server:
        [submission] = head_at(server, client).submissions()
    assert submission.message.startswith("failed: [2J [secret] xxx")
    assert len(submission.message) <= 300 and submission.message.isprintable()


def api_status(code: int, reason: str, message: str) -> Blocks:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    body |= {"reason": reason, "message": message}
    return answer(json.dumps(body).encode(), f"{code} {reason}")


@pytest.mark.parametrize("code", [401, 403])
def test_what_the_api_server_refuses_the_head_did_not(code: int, client: HttpClient) -> None:
    """Else the operator would take the job's cluster for another operator's."""
    message = "pods is forbidden: User may not get pods/proxy"
    with hostile_server(api_status(code, "Forbidden", message)) as server:
        for attempt in attempts(head_at(server, client, proxied=True)):
            with pytest.raises(HeadUnreachable, match="may not get"):
                attempt()


def test_behind_the_api_server_a_closed_port_is_nobody_who_reports(client: HttpClient) -> None:
    message = "error trying to reach service: dial tcp 10.0.0.7:8290: connect: connection refused"
    with hostile_server(api_status(503, "ServiceUnavailable", message)) as server:
        head = head_at(server, client, proxied=True)
        assert head.report() is None
        head.acknowledge("job-0-0", 3)
        with pytest.raises(HeadUnreachable):
            head.submissions()


def test_a_service_that_is_gone_is_unreachable(client: HttpClient) -> None:
    with hostile_server(api_status(404, "NotFound", 'services "x" not found')) as server:
        for attempt in attempts(head_at(server, client, proxied=True)):
            with pytest.raises(HeadUnreachable, match="not found"):
                attempt()


def test_a_name_that_does_not_exist_is_unreachable(client: HttpClient) -> None:
    address = address_of("http://no-such-head.invalid:8265")
    for attempt in attempts(PlainHead(HttpHead(client, address, address))):
        with pytest.raises(HeadUnreachable, match="its name is unknown"):
            attempt()
