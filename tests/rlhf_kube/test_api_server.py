"""Requests as an API server receives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rlhf_kube.api_server import ApiServer, Request
from rlhf_kube.errors import KubeconfigUnusable, Unreachable
from rlhf_kube.kinds import Kind

from ..free_port import free_port
from ..kubeconfigs import config, written

AGENT = "tests"


class Mirror(ThreadingHTTPServer):
    """Answers each request with what it received."""

    daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            said = {
                "method": self.command,
                "path": self.path,
                "headers": dict(self.headers),
                "body": self.rfile.read(length).decode(),
            }
            self.send_response(200 if "refused" not in self.path else 409)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with Mirror() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def api(path: Path, url: str, **user: str) -> ApiServer:
    return ApiServer.from_kubeconfig((written(path / "config", config(url, **user)),), None, AGENT)


def test_a_request_arrives_as_it_was_asked(mirror: Mirror, tmp_path: Path) -> None:
    server = api(tmp_path, mirror.url)
    answer = server.ask(
        Request("POST", Kind.POD.path("a"), {"limit": "5", "continue": ""}, {"é": 1})
    )
    said = json.loads(answer.data)
    assert answer.status == 200
    assert (said["method"], said["path"]) == ("POST", "/api/v1/namespaces/a/pods?limit=5")
    assert json.loads(said["body"]) == {"é": 1}
    assert said["headers"]["User-Agent"] == AGENT
    assert "Authorization" not in said["headers"]
    server.close()


def test_a_refusal_is_an_answer(mirror: Mirror, tmp_path: Path) -> None:
    assert api(tmp_path, mirror.url).ask(Request("GET", "/refused")).status == 409


@pytest.mark.parametrize(
    ("user", "sent"),
    [
        ({"token": "abc"}, "Bearer abc"),
        ({"username": "ann", "password": "pw"}, "Basic YW5uOnB3"),
    ],
)
def test_who_asks_is_said_and_told_to_other_clients(
    user: dict[str, str], sent: str, mirror: Mirror, tmp_path: Path
) -> None:
    """Heads behind the API server are asked by another client: without this they refuse."""
    server = api(tmp_path, mirror.url, **user)
    said = json.loads(server.ask(Request("GET", "/version")).data)
    assert said["headers"]["Authorization"] == sent
    assert server.access.server == mirror.url
    assert server.access.headers == {"Authorization": sent}
    assert sent not in repr(server.access)


def test_nobody_there_is_no_answer(tmp_path: Path) -> None:
    server = api(tmp_path, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="refused"):
        server.ask(Request("GET", "/version"))


def test_a_login_that_cannot_be_renewed_is_no_answer(mirror: Mirror, tmp_path: Path) -> None:
    server = api(tmp_path, mirror.url, token="abc")

    def fail(_: Any) -> None:
        raise KeyError("id-token")

    server._settings.refresh_api_key_hook = fail
    asking: list[Callable[[], object]] = [
        lambda: server.ask(Request("GET", "/version")),
        lambda: server.access,
        lambda: server.command_socket("a", "pod", "main", ["true"], "run a command"),
    ]
    for ask in asking:
        with pytest.raises(Unreachable, match="no login: KeyError: 'id-token'"):
            ask()


def test_outside_of_a_pod_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigUnusable, match="not set"):
        ApiServer.in_cluster(AGENT)


def test_a_file_that_says_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a: [")
    with pytest.raises(KubeconfigUnusable):
        ApiServer.from_kubeconfig((tmp_path / "config",), None, AGENT)


def test_kinds_have_addresses() -> None:
    assert Kind.JOB.path("a", "b", "status") == (
        "/apis/rlhf-operator.dev/v1alpha1/namespaces/a/rlhfjobs/b/status"
    )
    assert Kind.POD.path(None) == "/api/v1/pods"
    assert Kind.CLUSTER.resource == "rayclusters.ray.io" and Kind.POD.resource == "pods"
    assert Kind.from_manifest({"apiVersion": "v1", "kind": "Event"}) is Kind.CORE_EVENT
