"""The API server over HTTP: the only module that uses the official `kubernetes` package.

The package reads kubeconfigs, logs in, renews tokens and opens streams. Requests go through its
connection pool and carry objects as plain dictionaries: its models would drop unknown fields, and
its dynamic client first asks the API server for every kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config
from kubernetes.stream import stream

from rlhf_kube.errors import KubeconfigUnusable, StreamBroken, Unreachable
from rlhf_kube.kinds import Kind

# A server that is down does not block its callers for long; a busy one may take longer to answer.
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
JSON = "application/json"
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""File with the namespace of this process's pod."""


@dataclass(frozen=True)
class Request:
    """One request to the API server."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters; empty values are left out."""
    body: Mapping[str, Any] | None = None
    content_type: str = JSON
    doing: str = "answer"
    """In words, for errors, such as `read pods/a in team`."""
    kind: Kind | None = None
    """The kind of its objects, for errors."""


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
        self,
        settings: client.Configuration,
        namespace: str,
        user_agent: str,
        num_connections: int,
    ) -> None:
        settings.connection_pool_maxsize = num_connections
        settings.retries = False  # only the caller knows which requests are safe to repeat
        self._settings = settings
        self._client = client.ApiClient(settings)
        self.namespace = namespace
        """The default namespace: the context's, or the pod's."""
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
            KubeconfigUnusable: the files cannot be used.
        """
        settings, joined = client.Configuration(), os.pathsep.join(map(str, files))
        contexts: Sequence[Any] | None = None
        try:
            contexts, current = config.list_kube_config_contexts(joined)
            config.load_kube_config(
                joined, context, client_configuration=settings, persist_config=False
            )
        except Exception as error:  # the package raises whatever its parsers and login helpers do
            do = "correct it, or give another --kubeconfig"
            if contexts is not None:
                names = ", ".join(entry["name"] for entry in contexts)
                do = f"its contexts are {names or 'none'}"
            raise KubeconfigUnusable(
                f"the kubeconfig cannot be used: got {type(error).__name__}: {error} from "
                f"{joined}; {do}"
            ) from error
        chosen = next((entry for entry in contexts if entry["name"] == context), current)
        namespace = chosen["context"].get("namespace") or "default"
        return cls(settings, namespace, user_agent, num_connections)

    @classmethod
    def in_cluster(cls, user_agent: str, num_connections: int = 4) -> Self:
        """Connect with the service account of this process's pod.

        Raises:
            KubeconfigUnusable: this process runs in no pod.
        """
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise KubeconfigUnusable(
                f"this process is not in a pod of a cluster: got {error}; give --kubeconfig"
            ) from error
        has_namespace = POD_NAMESPACE.is_file()
        namespace = POD_NAMESPACE.read_text().strip() if has_namespace else "default"
        return cls(settings, namespace, user_agent, num_connections)

    @property
    def address(self) -> str:
        """Address of the server: https://HOST:PORT."""
        return str(self._settings.host)

    @property
    def access(self) -> Access:
        """Address and current credentials of the server, for another client. Renews tokens.

        Raises:
            Unreachable: tokens cannot be renewed.
        """
        settings = self._settings
        return Access(
            self.address,
            self._credentials("log in"),
            settings.ssl_ca_cert,
            settings.cert_file,
            settings.key_file,
        )

    def ask(
        self, request: Request, answer_seconds: float = ANSWER_SECONDS, is_stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """Send one request and return its response, whatever its status.

        Args:
            answer_seconds: longest silence of the server.
            is_stream: the response is read as it arrives and must be closed; reading raises
                urllib3's HTTPError.

        Raises:
            Unreachable: there is no response.
        """
        # An absent option is written as an empty value by callers.
        query = urlencode({name: value for name, value in request.query.items() if value})
        headers = {"Content-Type": request.content_type} | self._credentials(request.doing)
        try:
            answer: urllib3.BaseHTTPResponse = self._client.rest_client.pool_manager.request(
                request.method,
                self.address + request.path + ("?" + query if query else ""),
                body=None if request.body is None else json.dumps(request.body).encode(),
                headers=self.headers | headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=answer_seconds),
                preload_content=not is_stream,
                retries=False,
            )
            return answer
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self.unreachable(request.doing, error) from error

    def unreachable(self, doing: str, error: Exception, what: str = "") -> Unreachable:
        """Return the error of a request without a complete answer.

        Args:
            what: words before the error.
        """
        return Unreachable(
            f"the cluster cannot be reached to {doing}: got {what}{type(error).__name__}: {error} "
            f"from {self.address}; check that it runs, the network, and the kubeconfig's context"
        )

    def command_socket(
        self, namespace: str, pod: str, container: str, command: Sequence[str], doing: str
    ) -> Any:
        """Open a WebSocket (of the package `websocket`) to a command in a container.

        Not thread-safe: the package changes the client while it opens a stream.

        Raises:
            StreamBroken: the server refuses, with the package's message, or does not answer.
            KeyboardInterrupt: it arrived while the stream opened.
        """
        # Renew first: the package would pass on any exception of its login helpers.
        self._credentials(doing)
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
            raise StreamBroken(f"cannot {doing}: {error.reason}") from error
        return opened.sock

    def close(self) -> None:
        """Close all connections."""
        self._client.rest_client.close()

    def _credentials(self, doing: str) -> dict[str, str]:
        """Authorization header, renewed if due.

        Raises:
            Unreachable: it cannot be renewed.
        """
        try:
            token = self._settings.get_api_key_with_prefix("BearerToken", "authorization")
        except Exception as error:  # whatever the package's login helpers raise
            raise self.unreachable(doing, error, "no login: ") from error
        if token:
            return {"Authorization": token}
        if self._settings.username:
            return {"Authorization": self._settings.get_basic_auth_token()}
        return {}
