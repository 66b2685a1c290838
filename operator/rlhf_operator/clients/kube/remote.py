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

WARNINGS = 50
"""Events of one object that are read."""
USER_AGENT = "rlhf-operator"


@dataclass
class RemoteKube:
    """A cluster behind its API server. Its methods may be called from several threads."""

    server: ApiServer
    answered: Callable[[], None] = field(default=lambda: None)
    """Told of every answer: the connection lives."""
    asked: Callable[[str], None] = field(default=lambda method: None)
    """Told of every request's method."""

    @classmethod
    def connect(cls, kubeconfig: Path | None, num_connections: int) -> Self:
        """By a kubeconfig file; None: as a pod of the cluster.

        Raises:
            BadConfig: the file cannot be used, or this is no pod.
        """
        try:
            if kubeconfig is None:
                return cls(ApiServer.in_cluster(USER_AGENT, num_connections))
            return cls(ApiServer.from_kubeconfig((kubeconfig,), None, USER_AGENT, num_connections))
        except NotConfigured as error:
            where = f"kubeconfig {kubeconfig}" if kubeconfig else "not in a pod of a cluster"
            raise BadConfig(f"{where}: {error}; name a file by --kubeconfig") from error

    def close(self) -> None:
        """End its connections."""
        self.server.close()

    def ping(self) -> None:
        _checked(*self._ask("GET", "/version"))

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        status, answer = self._ask("GET", kind.path(namespace, name))
        return None if status == 404 else _checked(status, answer)

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        return tuple(self.each(kind, namespace, selector))

    def each(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> Iterator[Manifest]:
        def ask(query: Query) -> Manifest:
            page: Manifest = _checked(*self._ask("GET", kind.path(namespace), query))
            return page

        for page in pages(ask, {"labelSelector": selector}):
            for item in page["items"]:
                yield {**kind.header, **item}

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        """Of the core group: kubelets write such events, and they can be found by their object."""
        selector = f"involvedObject.uid={uid},type=Warning"
        query = {"fieldSelector": selector, "limit": str(WARNINGS)}
        found = _checked(*self._ask("GET", Kind.CORE_EVENT.path(namespace), query))["items"]
        told = sorted(found, key=lambda each: each.get("lastTimestamp") or "")
        return tuple(f"{each.get('reason', '')}: {each.get('message', '')}" for each in told)

    def create(self, manifest: Manifest) -> bool:
        path = Kind.from_manifest(manifest).path(manifest["metadata"]["namespace"])
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        status, answer = self._ask("POST", path, query, manifest)
        if status == 409 and answer.get("reason") == "AlreadyExists":
            return False
        _checked(status, answer)
        return True

    def apply(self, manifest: Manifest) -> Manifest:
        return self._apply(manifest, "")

    def apply_status(self, manifest: Manifest) -> Manifest:
        return self._apply(manifest, "status")

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        status, answer = self._ask("DELETE", kind.path(namespace, name), {}, options)
        if status in (404, 409):  # 409: it is another object now, which is not ours
            return False
        _checked(status, answer)
        return True

    def _apply(self, manifest: Manifest, part: str) -> Manifest:
        metadata = manifest["metadata"]
        path = Kind.from_manifest(manifest).path(metadata["namespace"], metadata["name"], part)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        status, answer = self._ask("PATCH", path, query, manifest, APPLY)
        if status == 404 or (status == 422 and _is_about_uid(answer)):
            raise Conflict(f"{status}: {answer.get('message', '')}")
        applied: Manifest = _checked(status, answer)
        return applied

    def _ask(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Any]:
        """One request; the status of the answer, and its JSON."""
        self.asked(method)
        try:
            answer = self.server.ask(method, path, query, body, content_type)
            content = _content(answer.status, answer.data)
        except (NoAnswer, ValueError) as error:
            raise Unreachable(f"{method} {path}: {error}") from error
        self.answered()
        return answer.status, content


@dataclass
class LastAnswer:
    """When Kubernetes last answered anything: how a connection that hangs is noticed."""

    clock: Callable[[], float] = time.monotonic
    time: float = field(init=False)

    def __post_init__(self) -> None:
        self.answered()

    def answered(self) -> None:
        """An answer has come."""
        self.time = self.clock()

    @property
    def age_seconds(self) -> float:
        """How long ago."""
        return self.clock() - self.time


def _content(status: int, text: bytes) -> Any:
    """An answer's JSON. API servers refuse in plain text what no part of them serves.

    Raises:
        ValueError: it is none, though the request succeeded.
    """
    try:
        return json.loads(text) if text else {}
    except ValueError:
        if 200 <= status < 300:
            raise
        return {"message": text.decode(errors="replace").strip()[:1024]}


def _is_about_uid(answer: Mapping[str, Any]) -> bool:
    """Whether it is another object now: kinds differ in how they say that."""
    causes = (answer.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == "metadata.uid" for cause in causes)


def _checked(status: int, answer: Any) -> Any:
    """The answer to a request that succeeded.

    Raises:
        KubeError: the one that fits the status.
    """
    if 200 <= status < 300:
        return answer
    message = answer.get("message", "") if isinstance(answer, Mapping) else ""
    raise _error_of(status)(f"{status}: {message}")


def _error_of(status: int) -> type[KubeError]:
    if status >= 500 or status in (408, 410, 429):  # 410: a list that took too long
        return Unreachable
    return {401: Forbidden, 403: Forbidden, 409: Conflict}.get(status, Invalid)
