"""A Kubernetes cluster, reached through its API server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError
from websocket import WebSocketException

from rlhf_cli.cluster.client import (
    FIELD_MANAGER,
    ClusterTarget,
    Listing,
    Object,
    StreamBroken,
    WatchEvent,
    WatchExpired,
    kubeconfig_files,
)
from rlhf_cli.cluster.command_stream import command_output, refused_handshake
from rlhf_cli.cluster.errors import ClusterUnreachable, KubeconfigUnusable
from rlhf_cli.cluster.refusals import parse_refusal, refusal_error
from rlhf_kube.api_server import (
    APPLY,
    JSON,
    MERGE,
    ApiServer,
    NoAnswer,
    NotConfigured,
    Query,
    context_names,
    context_namespace,
    pages,
)
from rlhf_kube.kinds import Kind

ANSWER_SECONDS = 60.0
WATCH_SECONDS = 60
"""Duration of a watch; bounds how long a dead connection stays unnoticed."""
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
USER_AGENT = "rlhf"


class RemoteCluster:
    """Implements `rlhf_cli.cluster.client.Cluster`; its methods are described there."""

    def __init__(self, target: ClusterTarget) -> None:
        """Read the kubeconfig.

        Raises:
            KubeconfigUnusable: there is none, or it lacks the context.
        """
        self._server, default_namespace = _connect(target)
        self.namespace = target.namespace or default_namespace

    def version(self) -> tuple[int, int]:
        answer = self._json("GET", "/version", None, "ask for its version")
        # Some providers add a suffix, as in "29+".
        parts = [re.match(r"\d+", str(answer.get(name))) for name in ("major", "minor")]
        major, minor = (int(part[0]) if part else 0 for part in parts)
        return major, minor

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        doing = f"read {kind.resource}/{name} in {namespace}"
        return self._json("GET", kind.path(namespace, name), kind, doing)

    def list(
        self, kind: Kind, namespace: str | None, labels: str = "", fields: str = ""
    ) -> Listing:
        doing = f"list {kind.resource} in {namespace or 'all namespaces'}"

        def ask(query: Query) -> Object:
            return self._json("GET", kind.path(namespace), kind, doing, query)

        responses = list(pages(ask, {"labelSelector": labels, "fieldSelector": fields}))
        items = tuple(
            # Items of a list lack kind and apiVersion.
            kind.header | item
            for response in responses
            for item in response.get("items") or ()
        )
        return Listing(items, responses[0]["metadata"]["resourceVersion"])

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        query = {
            "fieldSelector": fields,
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "watch": "true",
        }
        doing = f"watch {kind.resource} in {namespace or 'all namespaces'}"
        response = self._send("GET", kind.path(namespace), kind, doing, query, is_stream=True)
        try:
            for line in response:
                change = json.loads(line)
                if change["type"] == "ERROR":
                    # 410 Gone: the API server no longer has this version.
                    if change["object"].get("code") == 410:
                        raise WatchExpired
                    raise ClusterUnreachable(
                        f"the cluster could not {doing}: got {change['object'].get('message')}; "
                        "try again"
                    )
                yield WatchEvent(change["object"], change["type"] == "DELETED")
        except (HTTPError, ValueError) as error:
            raise self._unreachable(doing, error) from error
        finally:
            response.close()

    def create(self, kind: Kind, object: Object, *, dry_run: bool = False) -> Object:
        namespace, name = _namespaced_name(object)
        query = {"fieldManager": FIELD_MANAGER, "dryRun": "All" if dry_run else ""}
        doing = f"create {kind.resource}/{name} in {namespace}"
        return self._json("POST", kind.path(namespace), kind, doing, query, object)

    def apply(
        self, kind: Kind, object: Object, *, dry_run: bool = False, force: bool = False
    ) -> Object:
        namespace, name = _namespaced_name(object)
        # Strict: an unknown field is an error, not dropped.
        query = {
            "fieldManager": FIELD_MANAGER,
            "fieldValidation": "Strict",
            "force": "true" if force else "",
            "dryRun": "All" if dry_run else "",
        }
        doing = f"submit {kind.resource}/{name} in {namespace}"
        path = kind.path(namespace, name)
        return self._json("PATCH", path, kind, doing, query, object, APPLY)

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        doing = f"change {kind.resource}/{name} in {namespace}"
        return self._json("PATCH", kind.path(namespace, name), kind, doing, query, patch, MERGE)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
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
        doing = f"run a command in pods/{pod} in {namespace}"
        try:
            socket = self._server.command_socket(namespace, pod, container, command)
        except NoAnswer as error:
            refusal = refused_handshake(str(error))
            # Without an answer of the API server the network is the cause, and a retry may help.
            if refusal is None:
                raise StreamBroken(f"cannot {doing}: {error}") from error
            raise refusal_error(refusal, None, doing, self._server.address) from error
        try:
            yield from command_output(socket)
        except (OSError, WebSocketException) as error:
            raise StreamBroken(f"{type(error).__name__}: {error}") from error
        finally:
            socket.shutdown()  # close() leaves a connection open that the server has ended

    def _json(
        self,
        method: str,
        path: str,
        kind: Kind | None,
        doing: str,
        query: Query | None = None,
        body: Object | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        answer = self._send(method, path, kind, doing, query, body, content_type)
        try:
            document = json.loads(answer.data)
        except ValueError as error:
            raise self._unreachable(doing, error) from error
        return dict(document)

    def _send(
        self,
        method: str,
        path: str,
        kind: Kind | None,
        doing: str,
        query: Query | None,
        body: Object | None = None,
        content_type: str = JSON,
        is_stream: bool = False,
    ) -> BaseHTTPResponse:
        # A watch may be quiet until the server ends it.
        seconds = ANSWER_SECONDS + WATCH_SECONDS * is_stream
        try:
            answer = self._server.ask(
                method,
                path,
                query,
                body,
                content_type,
                answer_seconds=seconds,
                is_stream=is_stream,
            )
            if 200 <= answer.status < 300:
                return answer
            refusal = parse_refusal(answer.status, answer.data)
        except (NoAnswer, HTTPError) as error:
            raise self._unreachable(doing, error) from error
        raise refusal_error(refusal, kind, doing, self._server.address)

    def _unreachable(self, doing: str, error: Exception) -> ClusterUnreachable:
        got = str(error) if isinstance(error, NoAnswer) else f"{type(error).__name__}: {error}"
        return ClusterUnreachable(
            f"the cluster cannot be reached to {doing}: got {got} from {self._server.address}; "
            "check that it runs, the network, and --context"
        )


def _connect(target: ClusterTarget) -> tuple[ApiServer, str]:
    """Return the API server, and the namespace of the context or pod."""
    files = kubeconfig_files(target.kubeconfig, os.environ, Path.home())
    existing = tuple(file for file in files if file.is_file())
    is_named = target.kubeconfig is not None or target.context is not None
    try:
        if existing:
            server = ApiServer.from_kubeconfig(existing, target.context, USER_AGENT)
            return server, context_namespace(existing, target.context)
        # In a pod without a kubeconfig: the pod's service account.
        if OWN_NAMESPACE.is_file() and not is_named:
            return ApiServer.in_cluster(USER_AGENT), OWN_NAMESPACE.read_text().strip()
    except (NotConfigured, OSError) as error:
        raise KubeconfigUnusable(
            f"the kubeconfig cannot be used: got {error} from "
            f"{os.pathsep.join(map(str, existing))}; {_contexts_text(existing)}"
        ) from error
    raise KubeconfigUnusable(
        f"no cluster is configured: got no file at {', '.join(map(str, files))}; give "
        "--kubeconfig, or set KUBECONFIG"
    )


def _contexts_text(files: Sequence[Path]) -> str:
    try:
        return f"its contexts are {', '.join(context_names(files)) or 'none'}"
    except NotConfigured:  # the file itself cannot be read
        return "correct it, or give another --kubeconfig"


def _namespaced_name(object: Object) -> tuple[str, str]:
    return object["metadata"]["namespace"], object["metadata"]["name"]
