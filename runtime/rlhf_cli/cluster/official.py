"""A cluster through the official `kubernetes` package: the only module of the command that has it.

The package reads kubeconfigs, logs in and opens streams. Requests go through its connection pool
and carry objects as they are: commands need no model of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config
from kubernetes.stream import stream
from websocket import WebSocketException

from rlhf_cli.cluster.client import (
    FIELD_MANAGER,
    Change,
    Listing,
    Object,
    StreamBroken,
    Target,
    WatchExpired,
)
from rlhf_cli.cluster.command_stream import output, refused_handshake
from rlhf_cli.cluster.errors import ClusterUnreachable, KubeconfigUnusable
from rlhf_cli.cluster.kinds import Kind
from rlhf_cli.cluster.kubeconfig import kubeconfig_files
from rlhf_cli.cluster.refusals import error_of, read_refusal

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
WATCH_SECONDS = 60
"""How long a watch is kept open; a quiet connection is not mistaken for a living one for longer."""
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


class OfficialCluster:
    """See `rlhf_cli.cluster.client.Cluster`."""

    def __init__(self, target: Target) -> None:
        """Read the kubeconfig.

        Raises:
            KubeconfigUnusable: there is none, or it has no such context.
        """
        self._configuration = client.Configuration()
        usual = _load(target, self._configuration)
        self.namespace = target.namespace or usual
        self._configuration.retries = False
        self._client = client.ApiClient(self._configuration)

    def version(self) -> tuple[int, int]:
        """The API server's."""
        found = self._json("GET", "/version", None, "ask for its version")
        parts = [re.match(r"\d+", str(found.get(name))) for name in ("major", "minor")]
        major, minor = (int(part[0]) if part else 0 for part in parts)
        return major, minor

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object."""
        doing = f"read {kind.resource}/{name} in {namespace}"
        return self._json("GET", kind.path(namespace, name), kind, doing)

    def list(
        self, kind: Kind, namespace: str | None, labels: str = "", fields: str = ""
    ) -> Listing:
        """Objects that selectors match."""
        query = _query(labelSelector=labels, fieldSelector=fields)
        doing = f"list {kind.resource} in {namespace or 'all namespaces'}"
        found = self._json("GET", kind.path(namespace), kind, doing, query)
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        items = tuple(head | each for each in found.get("items") or ())
        return Listing(items, found["metadata"]["resourceVersion"])

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[Change]:
        """What happens after a version."""
        query = _query(
            fieldSelector=fields,
            resourceVersion=version,
            timeoutSeconds=str(WATCH_SECONDS),
            watch="true",
        )
        doing = f"watch {kind.resource} in {namespace or 'all namespaces'}"
        response = self._send("GET", kind.path(namespace), kind, doing, query, stream=True)
        try:
            for line in response:
                change = json.loads(line)
                if change["type"] == "ERROR":
                    if change["object"].get("code") == 410:
                        raise WatchExpired
                    raise ClusterUnreachable(
                        f"the cluster could not {doing}: got {change['object'].get('message')}; "
                        "try again"
                    )
                yield Change(change["object"], change["type"] == "DELETED")
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise self._unreachable(doing, error) from error
        finally:
            response.close()

    def create(self, kind: Kind, object: Object, *, dry_run: bool = False) -> Object:
        """A new object."""
        namespace, name = _place(object)
        query = _query(fieldManager=FIELD_MANAGER, dryRun="All" if dry_run else "")
        doing = f"create {kind.resource}/{name} in {namespace}"
        return self._json("POST", kind.path(namespace), kind, doing, query, object)

    def apply(
        self, kind: Kind, object: Object, *, dry_run: bool = False, force: bool = False
    ) -> Object:
        """An object made, or changed, to be as said."""
        namespace, name = _place(object)
        query = _query(
            fieldManager=FIELD_MANAGER,
            fieldValidation="Strict",
            force="true" if force else "",
            dryRun="All" if dry_run else "",
        )
        doing = f"submit {kind.resource}/{name} in {namespace}"
        path = kind.path(namespace, name)
        return self._json("PATCH", path, kind, doing, query, object, _APPLY)

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """An object with some fields changed."""
        query = _query(fieldManager=FIELD_MANAGER, fieldValidation="Strict")
        doing = f"change {kind.resource}/{name} in {namespace}"
        return self._json("PATCH", kind.path(namespace, name), kind, doing, query, patch, _MERGE)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Begin to delete an object."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        doing = f"delete {kind.resource}/{name} in {namespace}"
        self._json("DELETE", kind.path(namespace, name), kind, doing, {}, options)

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Iterator[bytes]:
        """What a command in a container writes, as it comes."""
        doing = f"run a command in pods/{pod} in {namespace}"
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
            refusal = refused_handshake(str(error.reason))
            if refusal is None:
                raise StreamBroken(f"cannot {doing}: {error.reason}") from error
            raise error_of(refusal, None, doing, self._configuration.host) from error
        try:
            yield from output(opened.sock)
        except (OSError, WebSocketException) as error:
            raise StreamBroken(f"{type(error).__name__}: {error}") from error
        finally:
            opened.sock.shutdown()  # close() leaves a connection open that the server has ended

    def _json(
        self,
        method: str,
        path: str,
        kind: Kind | None,
        doing: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        response = self._send(method, path, kind, doing, query or {}, body, content)
        try:
            found = json.loads(response.data)
        except ValueError as error:
            raise self._unreachable(doing, error) from error
        return dict(found)

    def _send(
        self,
        method: str,
        path: str,
        kind: Kind | None,
        doing: str,
        query: Mapping[str, str],
        body: Object | None = None,
        content: str = "application/json",
        stream: bool = False,
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content, "User-Agent": "rlhf"}
        token = self._configuration.get_api_key_with_prefix("BearerToken", "authorization")
        if token:
            headers["Authorization"] = token
        elif self._configuration.username:
            headers["Authorization"] = self._configuration.get_basic_auth_token()
        url = self._configuration.host + path
        answer = WATCH_SECONDS + ANSWER_SECONDS if stream else ANSWER_SECONDS
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                url + ("?" + urlencode(query) if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=answer),
                preload_content=not stream,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(doing, error) from error
        if not 200 <= response.status < 300:
            refusal = read_refusal(response.status, response.data)
            raise error_of(refusal, kind, doing, self._configuration.host)
        return response

    def _unreachable(self, doing: str, error: Exception) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"the cluster cannot be reached to {doing}: got {type(error).__name__}: {error} from "
            f"{self._configuration.host}; check that it runs, the network, and --context"
        )


def _load(target: Target, configuration: Any) -> str:
    """Fill in how the cluster is reached; gives the context's namespace."""
    files = kubeconfig_files(target.kubeconfig, os.environ, Path.home())
    joined = os.pathsep.join(str(each) for each in files if each.is_file())
    is_named = target.kubeconfig is not None or target.context is not None
    try:
        if joined:
            config.load_kube_config(
                joined, target.context, client_configuration=configuration, persist_config=False
            )
            return _namespace_of(joined, target.context)
        if OWN_NAMESPACE.is_file() and not is_named:
            config.load_incluster_config(client_configuration=configuration)
            return OWN_NAMESPACE.read_text().strip()
    except Exception as error:  # the package raises whatever its parsers and login helpers do
        raise KubeconfigUnusable(
            f"the kubeconfig cannot be used: got {type(error).__name__}: {error} from {joined}; "
            f"{_contexts(joined)}"
        ) from error
    raise KubeconfigUnusable(
        f"which cluster is meant is not said: got no file at {', '.join(map(str, files))}; give "
        "--kubeconfig, or set KUBECONFIG"
    )


def _namespace_of(files: str, context: str | None) -> str:
    contexts, current = config.list_kube_config_contexts(files)
    chosen = next((each for each in contexts if each["name"] == context), current)
    return str(chosen["context"].get("namespace") or "default")


def _contexts(files: str) -> str:
    try:
        contexts, _ = config.list_kube_config_contexts(files)
    except Exception:  # it is this file that cannot be used
        return "correct it, or give another --kubeconfig"
    return f"its contexts are {', '.join(each['name'] for each in contexts) or 'none'}"


def _query(**words: str) -> dict[str, str]:
    return {name: value for name, value in words.items() if value}


def _place(object: Object) -> tuple[str, str]:
    return object["metadata"]["namespace"], object["metadata"]["name"]
