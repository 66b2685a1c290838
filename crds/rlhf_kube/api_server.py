"""The API server over HTTP: the one module that has the official `kubernetes` package.

The package reads kubeconfigs, logs in, renews tokens and opens streams. Requests go through its
connection pool and carry objects as they are: nothing here needs a model of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config
from kubernetes.stream import stream

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
PAGE_SIZE = 50
"""Objects in one answer; more come in further ones."""
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

Query = Mapping[str, str]
Page = Mapping[str, Any]


class NotConfigured(Exception):
    """How the API server is reached is not said, or not in a way that can be used."""


class NoAnswer(Exception):
    """The API server did not answer, or its answer broke off."""


@dataclass(frozen=True)
class Access:
    """How an API server is reached."""

    server: str
    """https://HOST:PORT"""
    headers: Mapping[str, str] = field(repr=False)
    """Who asks."""
    authority: str | None
    """File of the certificates that sign the server's; None: the system's."""
    certificate: str | None
    """File of the certificate that says who asks."""
    private_key: str | None


class ApiServer:
    """One API server, as one user. Its methods may be called from several threads."""

    def __init__(
        self, settings: client.Configuration, user_agent: str, num_connections: int
    ) -> None:
        settings.connection_pool_maxsize = num_connections
        settings.retries = False  # the caller knows better what may be asked twice
        self._settings = settings
        self._client = client.ApiClient(settings)
        self.headers = {"Accept": JSON, "User-Agent": user_agent}
        """Sent with every request."""

    @classmethod
    def from_kubeconfig(
        cls, files: Sequence[Path], context: str | None, user_agent: str, num_connections: int = 4
    ) -> Self:
        """As the files, which are merged, earlier ones first, say.

        Args:
            context: one of theirs; None: their current one.

        Raises:
            NotConfigured: they cannot be used.
        """
        settings, joined = client.Configuration(), os.pathsep.join(map(str, files))
        try:
            config.load_kube_config(
                joined, context, client_configuration=settings, persist_config=False
            )
        except Exception as error:  # the package raises whatever its parsers and login helpers do
            raise NotConfigured(f"{type(error).__name__}: {error}") from error
        return cls(settings, user_agent, num_connections)

    @classmethod
    def in_cluster(cls, user_agent: str, num_connections: int = 4) -> Self:
        """As the account of the pod that this process is in.

        Raises:
            NotConfigured: it is in none.
        """
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise NotConfigured(f"{type(error).__name__}: {error}") from error
        return cls(settings, user_agent, num_connections)

    @property
    def address(self) -> str:
        """https://HOST:PORT"""
        return str(self._settings.host)

    @property
    def access(self) -> Access:
        """What another client needs to reach the same server, as of now: tokens are renewed.

        Raises:
            NoAnswer: they cannot be.
        """
        settings = self._settings
        return Access(
            self.address,
            self._credentials(),
            settings.ssl_ca_cert,
            settings.cert_file,
            settings.key_file,
        )

    def ask(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        is_stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """One request; its answer, whatever its status.

        Args:
            query: parameters without a value are left out.
            answer_seconds: how long the server may be silent.
            is_stream: the answer is read as it comes, and has to be closed; reading raises
                urllib3's HTTPError.

        Raises:
            NoAnswer: there is none.
        """
        given = {name: value for name, value in (query or {}).items() if value}
        url = self.address + path + ("?" + urlencode(given) if given else "")
        credentials = self._credentials()
        try:
            answer: urllib3.BaseHTTPResponse = self._client.rest_client.pool_manager.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=self.headers | {"Content-Type": content_type} | credentials,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=answer_seconds),
                preload_content=not is_stream,
                retries=False,
            )
            return answer
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error

    def command_socket(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Any:
        """The WebSocket to a command in a container, of the package `websocket`.

        Not for several threads at once: the package changes the client while it opens a stream.

        Raises:
            NoAnswer: the server refuses, in words of that package's, or does not answer.
            KeyboardInterrupt: it came meanwhile; the package hides it.
        """
        self._credentials()  # else the package would raise whatever renewing them does
        try:
            opened = stream(
                client.CoreV1Api(self._client).connect_get_namespaced_pod_exec,
                pod,
                namespace,
                container=container,
                command=list(command),
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except client.ApiException as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise NoAnswer(str(error.reason)) from error
        return opened.sock

    def close(self) -> None:
        """End its connections."""
        self._client.rest_client.close()

    def _credentials(self) -> dict[str, str]:
        """Who asks, renewed where that is due.

        Raises:
            NoAnswer: it cannot be renewed.
        """
        try:
            token = self._settings.get_api_key_with_prefix("BearerToken", "authorization")
        except Exception as error:  # whatever the package's login helpers raise
            raise NoAnswer(f"no login: {type(error).__name__}: {error}") from error
        if token:
            return {"Authorization": token}
        if self._settings.username:
            return {"Authorization": self._settings.get_basic_auth_token()}
        return {}


def context_namespace(files: Sequence[Path], context: str | None) -> str:
    """The namespace that a context of kubeconfigs names, else `default`.

    Raises:
        NotConfigured: they cannot be used.
    """
    contexts, current = _contexts(files)
    chosen = next((each for each in contexts if each["name"] == context), current)
    return str(chosen["context"].get("namespace") or "default")


def context_names(files: Sequence[Path]) -> tuple[str, ...]:
    """The contexts of kubeconfigs.

    Raises:
        NotConfigured: they cannot be used.
    """
    return tuple(each["name"] for each in _contexts(files)[0])


def pages(ask: Callable[[Query], Page], query: Query) -> Iterator[Page]:
    """A list, in parts: as many answers as it needs.

    Args:
        ask: sends one request for the list.
    """
    following = ""
    while True:
        page = ask({**query, "limit": str(PAGE_SIZE), "continue": following})
        yield page
        following = page["metadata"].get("continue", "")
        if not following:
            return


def _contexts(files: Sequence[Path]) -> tuple[Sequence[Any], Any]:
    try:
        found: tuple[Sequence[Any], Any] = config.list_kube_config_contexts(
            os.pathsep.join(map(str, files))
        )
    except Exception as error:  # the package raises whatever its parsers do
        raise NotConfigured(f"{type(error).__name__}: {error}") from error
    return found
