"""The operator's HTTP server: /metrics, /healthz, /readyz."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import (
    ThreadingWSGIServer,
    make_wsgi_app,
)

MAX_ANSWER_AGE_SECONDS = 300.0
"""Kubernetes is asked every minute even if nothing happens."""
CLOSE_SECONDS = 0.05
"""Interval at which the server checks if it is to close, and so the time that closing takes."""


@dataclass
class LastAnswer:
    """Time of Kubernetes' last answer, to detect a connection that hangs."""

    clock: Callable[[], float] = time.monotonic
    time: float = field(init=False)

    def __post_init__(self) -> None:
        self.record()

    def record(self) -> None:
        """Record an answer."""
        self.time = self.clock()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last answer."""
        return self.clock() - self.time


@dataclass(frozen=True)
class Health:
    """Liveness and readiness of the operator."""

    answer_age: Callable[[], float]
    """Seconds since Kubernetes last answered."""
    is_started: Callable[[], bool]
    """True once its watches have started."""
    definition_problem: Callable[[], str] = str
    """Describes a definition of RLHFJob that does not fit this operator. Empty: it fits, so far."""

    def problem(self, path: str) -> str | None:
        """Return why the answer is negative. None: it is positive."""
        if path == "/readyz" and not self.is_started():
            return "it does not watch the jobs yet"
        if path == "/readyz" and (problem := self.definition_problem()):
            return problem
        # A hung connection is repaired by a restart of the process.
        age = self.answer_age()
        if age > MAX_ANSWER_AGE_SECONDS:
            return f"Kubernetes has not answered for {age:.0f} s"
        return None


class _QuietHandler(WSGIRequestHandler):
    """Writes no log line per request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: int, registry: CollectorRegistry, health: Health) -> Callable[[], None]:
    """Answer on all addresses until the returned function is called.

    Raises:
        OSError: the port is in use.
    """
    metrics = make_wsgi_app(registry)

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "")
        if path == "/metrics":
            content: Iterable[bytes] = metrics(environment, start)
            return content
        exists = path in ("/healthz", "/readyz")
        problem = health.problem(path) if exists else "allowed: /metrics, /healthz, /readyz"
        status = "200 OK" if problem is None else "503 No" if exists else "404 Not Found"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{problem or 'ok'}\n".encode()]

    server = make_server("", port, answer, ThreadingWSGIServer, handler_class=_QuietHandler)
    serve = partial(server.serve_forever, CLOSE_SECONDS)
    threading.Thread(target=serve, name="health", daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop
