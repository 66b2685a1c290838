"""The API server over HTTP: the only module that uses the official `kubernetes` package.

The package reads kubeconfigs, logs in, renews tokens and opens streams. Requests go through its
connection pool and carry objects as plain dictionaries, without models of them.
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

# A server that is down does not block its callers for long; a busy one may take longer to answer.
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
# Largest number of objects in one page of a list.
PAGE_SIZE = 50
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

Query = Mapping[str, str]
Page = Mapping[str, Any]


class NotConfigured(Exception):
    """The address or login of the API server is missing, or cannot be used."""


class NoAnswer(Exception):
    """The API server did not answer, or its answer broke off."""


@dataclass(frozen=True)
class Access:
    """Address and credentials of an API server, for another client."""

    server: str
    """https://HOST:PORT"""
    headers: Mapping[str, str] = field(repr=False)
    """Headers that authenticate the user."""
    authority: str | None
    """File of certificates that sign the server's certificate. None: the system's."""
    certificate: str | None
    """File of the client certificate that authenticates the user."""
    private_key: str | None


class ApiServer:
    """One API server, as one user. Its methods may be called from several threads."""

    def __init__(
        self, settings: client.Configuration, user_agent: str, num_connections: int
    ) -> None:
        settings.connection_pool_maxsize = num_connections
        settings.retries = False  # only the caller knows which requests are safe to repeat
        self._settings = settings
        self._client = client.ApiClient(settings)
        self.headers = {"Accept": JSON, "User-Agent": user_agent}
        """Headers of every request."""

    @classmethod
    def from_kubeconfig(
        cls, files: Sequence[Path], context: str | None, user_agent: str, num_connections: int = 4
    ) -> Self:
        """Connect as kubeconfig files say. Files are merged; earlier ones take precedence.

        Args:
            context: a context of the files; None: their current one.

        Raises:
            NotConfigured: the files cannot be used.
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
        """Connect with the service account of this process's pod.

        Raises:
            NotConfigured: this process runs in no pod.
        """
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise NotConfigured(f"{type(error).__name__}: {error}") from error
        return cls(settings, user_agent, num_connections)

    @property
    def address(self) -> str:
        """Address of the server: https://HOST:PORT."""
        return str(self._settings.host)

    @property
    def access(self) -> Access:
        """Address and current credentials of the server, for another client. Renews tokens.

        Raises:
            NoAnswer: tokens cannot be renewed.
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
        """Send one request and return its response, whatever its status.

        Args:
            query: parameters; empty values are left out.
            answer_seconds: longest silence of the server.
            is_stream: the response is read as it arrives and must be closed; reading raises
                urllib3's HTTPError.

        Raises:
            NoAnswer: there is no response.
        """
        parameters = {name: value for name, value in (query or {}).items() if value}
        # An absent option is written as an empty value by callers.
        url = self.address + path + ("?" + urlencode(parameters) if parameters else "")
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
        """Open a WebSocket (of the package `websocket`) to a command in a container.

        Not thread-safe: the package changes the client while it opens a stream.

        Raises:
            NoAnswer: the server refuses, with the package's message, or does not answer.
            KeyboardInterrupt: it arrived while the stream opened.
        """
        # Renew first: the package would pass on any exception of its login helpers.
        self._credentials()
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
            # The package hides a Ctrl-C that arrives while it opens the stream.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise NoAnswer(str(error.reason)) from error
        return opened.sock

    def close(self) -> None:
        """Close all connections."""
        self._client.rest_client.close()

    def _credentials(self) -> dict[str, str]:
        """Authorization header, renewed if due.

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
    """The namespace of a context of kubeconfigs, else `default`.

    Raises:
        NotConfigured: the files cannot be used.
    """
    contexts, current = _contexts(files)
    chosen = next((entry for entry in contexts if entry["name"] == context), current)
    return str(chosen["context"].get("namespace") or "default")


def context_names(files: Sequence[Path]) -> tuple[str, ...]:
    """Names of all contexts of kubeconfigs.

    Raises:
        NotConfigured: the files cannot be used.
    """
    return tuple(entry["name"] for entry in _contexts(files)[0])


def pages(ask: Callable[[Query], Page], query: Query) -> Iterator[Page]:
    """Yield all pages of a list.

    Args:
        ask: sends one request for the list.
    """
    # The server returns a token with each page, and none with the last.
    following = ""
    while True:
        page = ask({**query, "limit": str(PAGE_SIZE), "continue": following})
        yield page
        following = page["metadata"].get("continue", "")
        if not following:
            return


def _contexts(files: Sequence[Path]) -> tuple[Sequence[Any], Any]:
    try:
        contexts: tuple[Sequence[Any], Any] = config.list_kube_config_contexts(
            os.pathsep.join(map(str, files))
        )
    except Exception as error:  # the package raises whatever its parsers do
        raise NotConfigured(f"{type(error).__name__}: {error}") from error
    return contexts
