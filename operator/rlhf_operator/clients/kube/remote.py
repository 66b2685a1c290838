"""Kubernetes through its API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rlhf_api.on_cluster import FIELD_MANAGER
from rlhf_kube.api_server import APPLY, JSON, ApiServer, NoAnswer, NotConfigured, Query, pages
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import (
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    Manifest,
    Unreachable,
)
from rlhf_operator.errors import BadConfig

MAX_WARNINGS = 50
"""Events of one object that are read."""
USER_AGENT = "rlhf-operator"


@dataclass
class RemoteKube:
    """A cluster behind its API server. Its methods may be called from any thread."""

    server: ApiServer
    on_answer: Callable[[], None] = field(default=lambda: None)
    """Called at every answer: the connection works."""
    on_request: Callable[[str], None] = field(default=lambda method: None)
    """Called with the method of every request."""

    @classmethod
    def connect(cls, kubeconfig: Path | None, num_connections: int) -> Self:
        """Connect by a kubeconfig file; None: as a pod of the cluster.

        Raises:
            BadConfig: the file cannot be used, or this is no pod.
        """
        try:
            if kubeconfig is None:
                return cls(ApiServer.in_cluster(USER_AGENT, num_connections))
            return cls(ApiServer.from_kubeconfig((kubeconfig,), None, USER_AGENT, num_connections))
        except NotConfigured as error:
            source = f"kubeconfig {kubeconfig}" if kubeconfig else "not in a pod of a cluster"
            raise BadConfig(f"{source}: {error}; name a file by --kubeconfig") from error

    def close(self) -> None:
        """Close its connections."""
        self.server.close()

    def ping(self) -> None:
        _check_status(*self._request("GET", "/version"))

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        status, answer = self._request("GET", kind.path(namespace, name))
        return None if status == 404 else _check_status(status, answer)

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        return tuple(self.iterate(kind, namespace, selector))

    def iterate(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> Iterator[Manifest]:
        def read_page(query: Query) -> Manifest:
            page: Manifest = _check_status(*self._request("GET", kind.path(namespace), query))
            return page

        for page in pages(read_page, {"labelSelector": selector}):
            for item in page["items"]:
                # Items of a list lack apiVersion and kind.
                yield {**kind.header, **item}

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        # Events of the core group: kubelets write those, and they can be selected by their object.
        selector = f"involvedObject.uid={uid},type=Warning"
        query = {"fieldSelector": selector, "limit": str(MAX_WARNINGS)}
        path = Kind.CORE_EVENT.path(namespace)
        events = _check_status(*self._request("GET", path, query))["items"]
        events = sorted(events, key=lambda event: event.get("lastTimestamp") or "")
        return tuple(f"{event.get('reason', '')}: {event.get('message', '')}" for event in events)

    def create(self, manifest: Manifest) -> bool:
        path = Kind.from_manifest(manifest).path(manifest["metadata"]["namespace"])
        # Without Strict, an old CRD drops unknown fields silently: without authOptions, say, a head
        # would accept requests without a token.
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        status, answer = self._request("POST", path, query, manifest)
        if status == 409 and answer.get("reason") == "AlreadyExists":
            return False
        _check_status(status, answer)
        return True

    def apply(self, manifest: Manifest) -> Manifest:
        return self._apply(manifest, "")

    def apply_status(self, manifest: Manifest) -> Manifest:
        return self._apply(manifest, "status")

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        # Background: the request does not wait for the pods of a cluster to end.
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        status, answer = self._request("DELETE", kind.path(namespace, name), {}, options)
        if status in (404, 409):  # 409: another object has the name, which is not ours to delete
            return False
        _check_status(status, answer)
        return True

    def _apply(self, manifest: Manifest, subresource: str) -> Manifest:
        metadata = manifest["metadata"]
        path = Kind.from_manifest(manifest).path(
            metadata["namespace"], metadata["name"], subresource
        )
        # The operator owns its fields: it replaces what another writer has put there.
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        status, answer = self._request("PATCH", path, query, manifest, APPLY)
        if status == 404 or (status == 422 and _is_uid_mismatch(answer)):
            raise Conflict(f"{status}: {answer.get('message', '')}")
        applied: Manifest = _check_status(status, answer)
        return applied

    def _request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Any]:
        """Make a request; return the status of the answer and its JSON."""
        self.on_request(method)
        try:
            answer = self.server.ask(method, path, query, body, content_type)
            content = _parse_answer(answer.status, answer.data)
        except (NoAnswer, ValueError) as error:
            raise Unreachable(f"{method} {path}: {error}") from error
        self.on_answer()
        return answer.status, content


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


def _parse_answer(status: int, text: bytes) -> Any:
    """Return an answer's JSON; of a refusal in plain text, an object with its message.

    Raises:
        ValueError: a request succeeded without JSON.
    """
    try:
        return json.loads(text) if text else {}
    except ValueError:
        if 200 <= status < 300:
            raise
        # API servers answer in plain text on paths that no part of them serves.
        return {"message": text.decode(errors="replace").strip()[:1024]}


def _is_uid_mismatch(answer: Mapping[str, Any]) -> bool:
    """True if another object has the name. Kinds differ in how they say that."""
    causes = (answer.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == "metadata.uid" for cause in causes)


def _check_status(status: int, answer: Any) -> Any:
    """Return the answer of a request that succeeded.

    Raises:
        KubeError: the class that fits the status.
    """
    if 200 <= status < 300:
        return answer
    message = answer.get("message", "") if isinstance(answer, Mapping) else ""
    raise _error_class(status)(f"{status}: {message}")


def _error_class(status: int) -> type[KubeError]:
    if status >= 500 or status in (408, 410, 429):  # 410: a list that lasted too long
        return Unreachable
    return {401: Forbidden, 403: Forbidden, 409: Conflict}.get(status, Invalid)
