"""Connections to heads, by the operator's settings."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_kube.api_server import Access
from rlhf_kube.errors import Unreachable
from rlhf_operator.clients.head.addresses import (
    ByTemplate,
    Certificates,
    HeadPod,
    InsideCluster,
    Route,
    ThroughApiServer,
)
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHeads
from rlhf_operator.clients.head.protocol import Head, HeadUnreachable
from rlhf_operator.config import BadConfig, HeadAccess, OperatorConfig


def head_client(config: OperatorConfig, access: Callable[[], Access]) -> HttpClient:
    """Return the HTTP client for requests to heads; the caller closes it."""
    if config.head_access is not HeadAccess.PROXY:
        return HttpClient()
    current = access()
    return HttpClient(Certificates(current.authority, current.certificate, current.private_key))


def head_connector(
    config: OperatorConfig, access: Callable[[], Access], client: HttpClient
) -> Callable[[HeadPod, str], Head]:
    """Return a function from a head's pod and token to the head.

    Args:
        access: returns the current access to the API server; its tokens change.
        client: carries the requests.

    Raises:
        BadConfig: headUrl is missing or invalid.
    """
    route = _route_factory(config, access)

    def connect(pod: HeadPod, token: str) -> Head:
        try:
            return HttpHeads(route(), client).head(pod, token)
        except Unreachable as error:
            raise HeadUnreachable(str(error)) from error

    return connect


def _route_factory(config: OperatorConfig, access: Callable[[], Access]) -> Callable[[], Route]:
    if config.head_access is HeadAccess.DIRECT:
        return InsideCluster
    if config.head_access is HeadAccess.PROXY:
        return lambda: ThroughApiServer(access().server, access().headers)
    if config.head_url is None:
        raise BadConfig("headAccess is template, so headUrl must say where heads are")
    try:
        template = ByTemplate(config.head_url)
    except ValueError as error:
        raise BadConfig(f"headUrl: {error}") from error
    return lambda: template
