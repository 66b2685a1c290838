"""The Kubernetes client: requests of the operator and the command, and what answers mean."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from urllib3 import BaseHTTPResponse, Retry
from urllib3.exceptions import HTTPError, InvalidHeader
from websocket import WebSocketException

from rlhf_kube.api_server import JSON, ApiServer, Request
from rlhf_kube.command_stream import command_output, refused_handshake
from rlhf_kube.errors import (
    AlreadyExists,
    Conflict,
    KubeError,
    ListExpired,
    NotFound,
    NotInstalled,
    StreamBroken,
    Unreachable,
    WatchExpired,
)
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Caller, Manifest, Snapshot, WatchEvent
from rlhf_kube.refusals import Refusal, parse_refusal, refusal_error

Query = Mapping[str, str]
Address = tuple[Kind, str, str]
"""Kind, namespace and name of an object."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PAGE_SIZE = 200
"""Largest number of objects in one page of a list. A busy API server takes a second or more for
each page, whatever its size, and forgets a list's version after five minutes."""
WATCH_SECONDS = 60
"""Duration of a watch; bounds how long a dead connection stays unnoticed."""
MIN_PAUSE_SECONDS = 1.0
"""Shortest pause before a request is repeated, whatever the API server asks for."""


@dataclass
class KubeClient:
    """Implements `rlhf_kube.protocol.Cluster`; its methods are described there.

    All but `execute` may be called from several threads.
    """

    server: ApiServer
    caller: Caller
    namespace: str = "default"
    on_request: Callable[[str], None] = field(default=lambda method: None)
    """Called with the method of every request."""
    on_answer: Callable[[], None] = field(default=lambda: None)
    """Called at every answer: the connection works."""
    pause: Callable[[float], None] = time.sleep
    """Sleeps for a number of seconds."""
    now: Callable[[], float] = time.monotonic
    """A clock in seconds."""

    def close(self) -> None:
        """Close all connections."""
        self.server.close()

    def version(self) -> tuple[int, int]:
        answer = self._json(Request("GET", "/version", doing="ask for its version"))
        # Some providers add a suffix, as in "29+".
        parts = [re.match(r"\d+", str(answer.get(name))) for name in ("major", "minor")]
        major, minor = (int(part[0]) if part else 0 for part in parts)
        return major, minor

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        try:
            return self._json(_about("GET", "read", (kind, namespace, name)))
        except NotFound:
            return None
        except NotInstalled:
            # KubeRay may be removed before a job that had a cluster. Without our own kind nothing
            # works, and the error says what to install.
            if kind is Kind.JOB:
                raise
            return None

    def iterate(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Iterator[Manifest]:
        return _items(kind, self._pages(kind, namespace, labels, fields))

    def list(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        return tuple(self.iterate(kind, namespace, labels, fields))

    def snapshot(self, kind: Kind, namespace: str | None, fields: str = "") -> Snapshot:
        pages = list(self._pages(kind, namespace, "", fields))
        return Snapshot(tuple(_items(kind, pages)), pages[0]["metadata"]["resourceVersion"])

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        query = {
            "fieldSelector": fields,
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "watch": "true",
        }
        request = _all("watch", kind, namespace, query)
        response = self._send(request, is_stream=True)
        try:
            for line in response:
                change = json.loads(line)
                if change["type"] == "ERROR":
                    raise _broken_watch(change["object"], request.doing)
                yield WatchEvent(change["object"], change["type"] == "DELETED")
        except (HTTPError, ValueError) as error:
            raise self.server.unreachable(request.doing, error) from error
        finally:
            response.close()

    def create(self, manifest: Manifest) -> bool:
        kind, metadata = Kind.from_manifest(manifest), manifest["metadata"]
        namespace = metadata["namespace"]
        name = metadata.get("name") or metadata["generateName"]
        doing = f"create {kind.resource}/{name} in {namespace}"
        try:
            self._json(
                Request("POST", kind.path(namespace), self._options, manifest, JSON, doing, kind)
            )
        except AlreadyExists:
            return False
        return True

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        options = {"force": "true" if force else "", "dryRun": "All" if dry_run else ""}
        return self._patch(_address(manifest), "apply", manifest, APPLY, options)

    def apply_status(self, manifest: Manifest) -> Manifest:
        address = _address(manifest)
        # The operator owns the status: it replaces what another writer has put there.
        options = {"force": "true"}
        return self._patch(address, "apply the status of", manifest, APPLY, options, "status")

    def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest) -> Manifest:
        return self._patch((kind, namespace, name), "change", patch, MERGE, {})

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        # Background: the request does not wait for the pods of a cluster to end.
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._json(_about("DELETE", "delete", (kind, namespace, name), body=options))
        except (NotFound, Conflict, NotInstalled):  # Conflict: another object has the name now
            return False
        return True

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Iterator[bytes]:
        doing = f"run a command in pods/{pod} in {namespace}"
        try:
            socket = self.server.command_socket(namespace, pod, container, command, doing)
        except StreamBroken as error:
            refusal = refused_handshake(str(error))
            # Without an answer of the API server the network is the cause, and a retry may help.
            if refusal is None:
                raise
            raise self._error(refusal, None, doing) from error
        try:
            yield from command_output(socket)
        except (OSError, WebSocketException) as error:
            raise StreamBroken(f"{type(error).__name__}: {error}") from error
        finally:
            socket.shutdown()  # close() leaves a connection open that the server has ended

    def _pages(
        self, kind: Kind, namespace: str | None, labels: str, fields: str
    ) -> Iterator[Manifest]:
        """Yield the pages of a list."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE_SIZE)}
        following = ""
        while True:
            try:
                page = self._json(_all("list", kind, namespace, {**query, "continue": following}))
            except ListExpired as error:
                # The rest as it is now: a busy server may never answer all pages of one version in
                # time. What exists all the while is in the list all the same.
                following = error.following
                continue
            yield page
            # The server returns a token with each page, and none with the last.
            following = page["metadata"].get("continue", "")
            if not following:
                return

    def _patch(
        self,
        address: Address,
        verb: str,
        body: Manifest,
        content_type: str,
        options: Query,
        part: str = "",
    ) -> Manifest:
        query = {**self._options, **options}
        return self._json(_about("PATCH", verb, address, query, body, content_type, part))

    @property
    def _options(self) -> Query:
        """Options of all writes."""
        # Without Strict, an old CRD drops unknown fields silently: without authOptions, say, a head
        # would accept requests without a token.
        return {"fieldManager": self.caller.name, "fieldValidation": "Strict"}

    def _json(self, request: Request) -> dict[str, Any]:
        """Make a request and return its answer."""
        answer = self._send(request)
        try:
            return dict(json.loads(answer.data))
        except ValueError as error:
            raise self.server.unreachable(request.doing, error) from error

    def _send(self, request: Request, is_stream: bool = False) -> BaseHTTPResponse:
        """Return the successful response of a request; repeat one that a busy server puts off."""
        give_up = self.now() + self.caller.busy_seconds
        answer = self._ask(request, is_stream)
        while (seconds := _pause_seconds(request, answer)) and self.now() + seconds <= give_up:
            answer.drain_conn()
            self.pause(seconds)
            answer = self._ask(request, is_stream)
        if 200 <= answer.status < 300:
            return answer
        try:
            refusal = parse_refusal(answer.status, answer.data)
        except HTTPError as error:
            raise self.server.unreachable(request.doing, error) from error
        raise self._error(refusal, request.kind, request.doing)

    def _ask(self, request: Request, is_stream: bool) -> BaseHTTPResponse:
        self.on_request(request.method)
        # A watch may be quiet until the server ends it.
        seconds = self.caller.answer_seconds + WATCH_SECONDS * is_stream
        answer = self.server.ask(request, seconds, is_stream)
        self.on_answer()
        return answer

    def _error(self, refusal: Refusal, kind: Kind | None, doing: str) -> KubeError:
        return refusal_error(refusal, kind, doing, self.server.address, self.caller.subject)


def _pause_seconds(request: Request, answer: BaseHTTPResponse) -> float | None:
    """Return the seconds until a busy API server wants the request again.

    None: the server does not ask for it, or the request must not be repeated.
    """
    # 429: the server has not begun with it. After another error a write may have had its effect.
    is_safe = answer.status == 429 or (request.method == "GET" and answer.status >= 500)
    header = answer.headers.get("Retry-After")
    if header is None or not is_safe:
        return None
    try:
        return max(MIN_PAUSE_SECONDS, Retry().parse_retry_after(header))
    except InvalidHeader:
        return None


def _items(kind: Kind, pages: Iterable[Manifest]) -> Iterator[Manifest]:
    for page in pages:
        for item in page.get("items") or ():
            # Items of a list lack apiVersion and kind.
            yield {**kind.header, **item}


def _address(manifest: Manifest) -> Address:
    metadata = manifest["metadata"]
    return Kind.from_manifest(manifest), metadata["namespace"], metadata["name"]


def _about(
    method: str,
    verb: str,
    address: Address,
    query: Query | None = None,
    body: Manifest | None = None,
    content_type: str = JSON,
    part: str = "",
) -> Request:
    """Return a request about one object, or a part of it."""
    kind, namespace, name = address
    doing = f"{verb} {kind.resource}/{name} in {namespace}"
    path = kind.path(namespace, name, part)
    return Request(method, path, query or {}, body, content_type, doing, kind)


def _all(verb: str, kind: Kind, namespace: str | None, query: Query) -> Request:
    """Return a request about the objects of a namespace, or of all."""
    doing = f"{verb} {kind.resource} in {namespace or 'all namespaces'}"
    return Request("GET", kind.path(namespace), query, doing=doing, kind=kind)


def _broken_watch(status: Mapping[str, Any], doing: str) -> WatchExpired | Unreachable:
    # 410 Gone: the API server no longer has this version.
    if status.get("code") == 410:
        return WatchExpired()
    return Unreachable(f"the cluster could not {doing}: got {status.get('message')}; try again")
