"""The HTTP of pretended heads: Ray's Jobs API and State API, and a driver's report server."""

from __future__ import annotations

import hmac
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from rlhf_api.on_cluster import DASHBOARD_PORT, REPORT_PORT

from .fake_driver import FakeDriver

CLOSE_SECONDS = 0.02
"""How often a server checks whether it is to close: its close takes up to as long."""


@dataclass(frozen=True)
class Request:
    """What a client wants."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    token: str
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What it gets: text, or anything else as JSON."""

    status: HTTPStatus
    content: Any = ""

    @property
    def body(self) -> bytes:
        text = self.content if isinstance(self.content, str) else json.dumps(self.content)
        return text.encode()


class PlayedHead(Protocol):
    """What of a head its HTTP needs."""

    token: str | None
    submissions: dict[str, FakeDriver]

    def submit(self, id: str, entrypoint: str, environment: Mapping[str, str]) -> bool: ...

    def serving(self) -> FakeDriver | None: ...


def answer(head: PlayedHead, port: int, path: str, request: Request) -> Reply:
    """What a head's port answers. As in Ray, a wrong token is not the same as none."""
    if port == REPORT_PORT and path == "/healthz":
        return Reply(HTTPStatus.OK if head.serving() else HTTPStatus.NOT_FOUND)
    if not request.token:
        return Reply(HTTPStatus.UNAUTHORIZED, "Unauthorized: Missing authentication token")
    head.token = head.token or request.token
    if not hmac.compare_digest(head.token, request.token):
        wrong = HTTPStatus.UNAUTHORIZED if port == REPORT_PORT else HTTPStatus.FORBIDDEN
        return Reply(wrong, "Forbidden: Invalid authentication token")
    if port == REPORT_PORT:
        return _report_server(head, path, request)
    if port == DASHBOARD_PORT:
        return _dashboard(head, path, request)
    return Reply(HTTPStatus.NOT_FOUND, f"nothing at port {port}")


def _report_server(head: PlayedHead, path: str, request: Request) -> Reply:
    driver = head.serving()
    if driver is None or driver.report is None:
        return Reply(HTTPStatus.NOT_FOUND, "no driver listens")
    if (request.method, path) == ("GET", "/report"):
        return Reply(HTTPStatus.OK, driver.report.model_dump_json(by_alias=True))
    if (request.method, path) == ("POST", "/acknowledge"):
        wanted = json.loads(request.body)
        if driver.acknowledge(wanted["submissionId"], wanted["sequence"]):
            return Reply(HTTPStatus.NO_CONTENT)
        return Reply(HTTPStatus.CONFLICT, "not the report that is served")
    return Reply(HTTPStatus.NOT_FOUND, "404: Not Found")


def _dashboard(head: PlayedHead, path: str, request: Request) -> Reply:
    if path == "/api/v0/logs/file" and request.method == "GET":
        return _log_end(head, request)
    if path == "/api/jobs/" and request.method == "GET":
        return Reply(HTTPStatus.OK, [driver.entry() for driver in head.submissions.values()])
    if path == "/api/jobs/" and request.method == "POST":
        return _submit(head, json.loads(request.body))
    words = [unquote(word) for word in path.removeprefix("/api/jobs/").split("/")]
    driver = head.submissions.get(words[0])
    if driver is None:
        return Reply(HTTPStatus.NOT_FOUND, f"Job {words[0]} does not exist")
    if request.method == "GET" and len(words) == 1:
        return Reply(HTTPStatus.OK, driver.entry())
    if request.method == "POST" and words[1:] == ["stop"]:
        return Reply(HTTPStatus.OK, {"stopped": driver.stop()})
    return Reply(HTTPStatus.NOT_FOUND, "404: Not Found")


def _submit(head: PlayedHead, wanted: Mapping[str, Any]) -> Reply:
    id = wanted["submission_id"]
    environment = (wanted.get("runtime_env") or {}).get("env_vars", {})
    if head.submit(id, wanted["entrypoint"], environment):
        return Reply(HTTPStatus.OK, {"job_id": id, "submission_id": id})
    words = f"ValueError: Job with submission_id {id} already exists."
    return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, f"Traceback (most recent call last):\n{words}")


def _log_end(head: PlayedHead, request: Request) -> Reply:
    driver = head.submissions.get(request.query["submission_id"][0])
    if driver is None:
        return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, "Could not find a log file.")
    return Reply(HTTPStatus.OK, driver.output_end(int(request.query["lines"][0])))


class FakeHeadServer:
    """A server on a free port of this machine, in threads of its own."""

    def __init__(
        self, respond: Callable[[Request], Reply | None], address: str = "127.0.0.1"
    ) -> None:
        self._server = _Server((address, 0), _handler(respond))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_SECONDS,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self._server.server_address[0]!s}:{self.port}"

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        """Nothing answers any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is nobody's error; all else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(respond: Callable[[Request], Reply | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._respond("GET")

        def do_POST(self) -> None:
            self._respond("POST")

        def _respond(self, method: str) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            header = self.headers.get("Authorization") or self.headers.get("X-Ray-Authorization")
            token = (header or "").removeprefix("Bearer ")
            query = parse_qs(parts.query)
            reply = respond(Request(method, parts.path, query, token, body))
            if reply is None:
                self.close_connection = True
                return
            content = reply.body
            self.send_response(reply.status)
            if reply.status is not HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a test fails by what it looks at."""

    return Handler
