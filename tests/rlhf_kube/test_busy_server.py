"""Answers of an API server that is busy, starts or ends: which requests are sent again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rlhf_kube.api_server import ApiServer
from rlhf_kube.client import KubeClient
from rlhf_kube.errors import Unreachable
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Caller

from ..kubeconfigs import config, written

CONFIG_MAP = {**Kind.CONFIG_MAP.header, "metadata": {"name": "map", "namespace": "team"}}
LATER = {"Retry-After": "2"}


class Server(ThreadingHTTPServer):
    """Answers with the next statuses and headers of a script, then with success."""

    daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        server: Server

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script = self.server.script
            status, headers = script.popleft() if script else (200, {})
            self.server.requests.append(self.command)
            message = {"kind": "Status", "message": "Too large resource version"}
            body = json.dumps(CONFIG_MAP if status == 200 else message).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = _answer

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.script: deque[tuple[int, dict[str, str]]] = deque()
        self.requests: list[str] = []


@dataclass
class Client:
    """A client of the server, with a clock that only its pauses move."""

    server: Server
    kube: KubeClient
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kube.pause = self.pauses.append
        self.kube.now = lambda: sum(self.pauses)

    def read(self) -> None:
        assert self.kube.get(Kind.CONFIG_MAP, "team", "map") is not None


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Server() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        file = written(tmp_path / "config", config(f"http://127.0.0.1:{server.server_port}"))
        caller = Caller("tests", "you", answer_seconds=30.0, busy_seconds=10.0)
        kube = KubeClient(ApiServer.from_kubeconfig((file,), None, "tests"), caller)
        yield Client(server, kube)
        kube.close()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_a_read_is_sent_again_when_the_server_asks_for_it(client: Client, status: int) -> None:
    client.server.script.extend([(status, LATER), (status, {"Retry-After": "0"})])
    client.read()
    assert client.pauses == [2.0, 1.0], "never at once"
    assert client.server.requests == ["GET"] * 3


def test_a_write_is_sent_again_only_if_it_was_not_begun(client: Client) -> None:
    client.server.script.append((429, LATER))
    assert client.kube.create(CONFIG_MAP)
    assert client.server.requests == ["POST", "POST"]
    client.server.script.append((504, LATER))
    with pytest.raises(Unreachable, match="504"):
        client.kube.create(CONFIG_MAP)
    assert client.server.requests == ["POST"] * 3


def test_a_watch_is_sent_again(client: Client) -> None:
    client.server.script.append((429, LATER))
    with pytest.raises(KeyError):  # it gets an object instead of events
        next(client.kube.watch(Kind.CONFIG_MAP, "team", "1"))
    assert client.server.requests == ["GET", "GET"]


def test_a_server_that_stays_busy_is_given_up(client: Client) -> None:
    client.server.script.extend([(429, LATER)] * 9)
    with pytest.raises(Unreachable, match="429: Too large resource version"):
        client.read()
    assert client.pauses == [2.0] * 5, "not longer than busy_seconds"


@pytest.mark.parametrize("header", [{}, {"Retry-After": "soon"}, {"Retry-After": "3600"}])
def test_other_refusals_are_errors_at_once(client: Client, header: dict[str, str]) -> None:
    client.server.script.append((503, header))
    with pytest.raises(Unreachable, match="503"):
        client.read()
    assert client.pauses == []
