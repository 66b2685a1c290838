"""Kubernetes through its official client. Nothing else imports that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from rlhf_api.on_cluster import FIELD_MANAGER
from rlhf_operator.config import BadConfig
from rlhf_operator.kube.protocol import (
    Conflict,
    Forbidden,
    Invalid,
    Kind,
    KubeError,
    Manifest,
    Unreachable,
)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
PAGE_SIZE = 500
"""Objects in one answer; more come in further ones."""
WARNINGS = 50
"""Events of one object that are read."""
APPLY = "application/apply-patch+yaml"
JSON = "application/json"
Query = Mapping[str, str]


@dataclass(frozen=True)
class Access:
    """How an API server is reached."""

    server: str
    headers: Mapping[str, str] = field(repr=False)
    authority: str | None
    certificate: str | None
    private_key: str | None


@dataclass
class OfficialKube:
    """A cluster, by the official client. Its methods may be called from several threads."""

    api: Any
    """kubernetes.client.ApiClient"""
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
        settings = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=settings)
        except (config.ConfigException, yaml.YAMLError) as error:
            where = f"kubeconfig {kubeconfig}" if kubeconfig else "not in a pod of a cluster"
            raise BadConfig(f"{where}: {error}; name a file by --kubeconfig") from error
        settings.connection_pool_maxsize = num_connections
        settings.retries = False  # the caller knows better what may be asked twice
        return cls(client.ApiClient(settings))

    def close(self) -> None:
        """End its connections."""
        self.api.rest_client.close()

    @property
    def access(self) -> Access:
        """What another client needs to reach the same API server, as of now."""
        settings = self.api.configuration
        bearer = settings.get_api_key_with_prefix("authorization")
        return Access(
            settings.host,
            {"Authorization": bearer} if bearer else {},
            settings.ssl_ca_cert,
            settings.cert_file,
            settings.key_file,
        )

    def ping(self) -> None:
        _checked(*self._ask("GET", "/version"))

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        status, answer = self._ask("GET", _path(kind, namespace, name))
        return None if status == 404 else _checked(status, answer)

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        items: list[Manifest] = []
        query = {"limit": str(PAGE_SIZE), "labelSelector": selector}
        while True:
            page = _checked(*self._ask("GET", _path(kind, namespace), query))
            types = {"apiVersion": kind.value.api_version, "kind": kind.value.kind}
            items += [{**types, **item} for item in page["items"]]
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return tuple(items)

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        """Of the core group: kubelets write such events, and they can be found by their object."""
        selector = f"involvedObject.uid={uid},type=Warning"
        query = {"fieldSelector": selector, "limit": str(WARNINGS)}
        path = f"/api/v1/namespaces/{namespace}/events"
        found = _checked(*self._ask("GET", path, query))["items"]
        told = sorted(found, key=lambda each: each.get("lastTimestamp") or "")
        return tuple(f"{each.get('reason', '')}: {each.get('message', '')}" for each in told)

    def create(self, manifest: Manifest) -> bool:
        path = _path(Kind.of(manifest), manifest["metadata"]["namespace"])
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        status, answer = self._ask("POST", path, query, manifest)
        if status == 409 and answer.get("reason") == "AlreadyExists":
            return False
        _checked(status, answer)
        return True

    def apply(self, manifest: Manifest) -> Manifest:
        return self._apply(manifest, "")

    def apply_status(self, manifest: Manifest) -> Manifest:
        return self._apply(manifest, "/status")

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        status, answer = self._ask("DELETE", _path(kind, namespace, name), {}, options)
        if status not in (404, 409):  # 409: it is another object now, which is not ours
            _checked(status, answer)

    def _apply(self, manifest: Manifest, subresource: str) -> Manifest:
        metadata = manifest["metadata"]
        path = _path(Kind.of(manifest), metadata["namespace"], metadata["name"]) + subresource
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
        request = self.api.param_serialize(
            method=method,
            resource_path=path,
            query_params=[(name, value) for name, value in (query or {}).items() if value],
            header_params={"Accept": JSON, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        method, url, headers, *_ = request
        self.asked(method)
        try:
            answer = self.api.rest_client.request(
                method,
                url,
                headers=headers,
                body=json.dumps(body) if content_type == APPLY else body,
                _request_timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
            )
            content = _content(answer.status, answer.read())
        except (HTTPError, client.ApiException, OSError, ValueError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
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


def _path(kind: Kind, namespace: str | None, name: str = "") -> str:
    resource = kind.value
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else "/api/v1"
    place = "" if namespace is None else f"/namespaces/{namespace}"
    return f"{root}{place}/{resource.plural}" + (f"/{name}" if name else "")


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
    if status >= 500 or status in (408, 429):
        return Unreachable
    return {401: Forbidden, 403: Forbidden, 409: Conflict}.get(status, Invalid)
