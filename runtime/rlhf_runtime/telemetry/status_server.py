"""Serves the report of a run over HTTP: GET /report, POST /acknowledge, GET /healthz.

Clients without the token only learn that a server is listening.
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlhf_runtime.bounded_wait import BoundedWait
from rlhf_runtime.serving import serve_in_thread, stop_serving
from rlhf_runtime.telemetry.errors import ReportPortInUse
from rlhf_runtime.telemetry.status_board import StatusBoard

# Time limit of a client's request.
REQUEST_SECONDS = 10.0

LONGEST_BODY = 4096
# Either one: the proxy of the API server does not pass the first on.
TOKEN_HEADERS = ("Authorization", "X-Ray-Authorization")


class StatusServer:
    """Serves in background threads, until `close` or the end of the process."""

    def __init__(self, board: StatusBoard, token: str) -> None:
        """Create a server that is not open.

        Args:
            board: has the report.
            token: required of clients. Empty: every client is refused.
        """
        self._board = board
        self._token = token
        self._server: ThreadingHTTPServer | None = None

    def open(self, host: str, port: int, wait: BoundedWait) -> int:
        """Start to serve; returns the port.

        Raises:
            ReportPortInUse: the port is still in use at the end of the wait.
        """
        # A predecessor uses the port until its own final report is read.
        obstacle = wait.until_free(lambda: self._bind(host, port))
        if obstacle:
            raise ReportPortInUse(
                f"the report cannot be served: got {obstacle} for {wait.seconds:g} s; end the "
                "process that uses it, or choose another with --report-port"
            )
        assert self._server is not None
        serve_in_thread(self._server, "report")
        return self._server.server_address[1]

    def close(self) -> None:
        """Stop to serve; safe without `open`."""
        if self._server is not None:
            stop_serving(self._server)
            self._server = None

    def _bind(self, host: str, port: int) -> str:
        handler = type("Bound", (_Handler,), {"board": self._board, "token": self._token})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            return f"port {port}: {(error.strerror or str(error)).lower()}"
        return ""


class _Server(ThreadingHTTPServer):
    """A daemon thread per request."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log clients that disconnect early: stderr is the job's log."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    board: StatusBoard
    token: str
    timeout = REQUEST_SECONDS
    server_version = "rlhf"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(HTTPStatus.OK, b"ok", "text/plain")
        elif self.path != "/report":
            self._answer(HTTPStatus.NOT_FOUND)
        elif self._is_admitted():
            body = self.board.latest.model_dump_json(by_alias=True, exclude_none=True)
            self._answer(HTTPStatus.OK, body.encode(), "application/json")

    def do_POST(self) -> None:
        if self.path != "/acknowledge":
            self._answer(HTTPStatus.NOT_FOUND)
        elif self._is_admitted():
            self._acknowledge()

    def _acknowledge(self) -> None:
        body = self._json_body()
        submission, sequence = body.get("submissionId"), body.get("sequence")
        if not isinstance(submission, str) or type(sequence) is not int:
            self._answer(HTTPStatus.BAD_REQUEST)
        elif self.board.acknowledge(submission, sequence):
            self._answer(HTTPStatus.NO_CONTENT)
        else:
            self._answer(HTTPStatus.CONFLICT)

    def _is_admitted(self) -> bool:
        """True if the client has the token; otherwise the request is answered."""
        expected = f"Bearer {self.token}".encode()
        values = [self.headers.get(name, "").encode() for name in TOKEN_HEADERS]
        # Compare all values, in constant time.
        matches = [hmac.compare_digest(value, expected) for value in values]
        if any(matches) and self.token:
            return True
        self._answer(HTTPStatus.UNAUTHORIZED)
        return False

    def _json_body(self) -> Mapping[str, Any]:
        """The object in the body; empty if it is no object or too long."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_BODY:
            return {}
        try:
            value = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests: stderr is the job's log."""
