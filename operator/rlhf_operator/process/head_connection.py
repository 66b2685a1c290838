"""How the operator reaches heads, by its settings."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_kube.api_server import Access, NoAnswer
from rlhf_operator.clients.head.addresses import (
    ByTemplate,
    Certificates,
    HeadPlace,
    InsideCluster,
    Route,
    ThroughApiServer,
)
from rlhf_operator.clients.head.client import HttpClient
from rlhf_operator.clients.head.http import HttpHeads
from rlhf_operator.clients.head.protocol import Head, HeadUnreachable
from rlhf_operator.config import HeadAccess, OperatorConfig
from rlhf_operator.errors import BadConfig


def head_client(config: OperatorConfig, access: Callable[[], Access]) -> HttpClient:
    """What carries requests to heads; it has to be closed."""
    if config.head_access is not HeadAccess.PROXY:
        return HttpClient()
    now = access()
    return HttpClient(Certificates(now.authority, now.certificate, now.private_key))


def dialing(
    config: OperatorConfig, access: Callable[[], Access], client: HttpClient
) -> Callable[[HeadPlace, str], Head]:
    """From the place of a head, and its token, to the head.

    Args:
        access: how the API server is reached just now; its tokens change.
        client: what carries the requests.

    Raises:
        BadConfig: headUrl is missing, or is none.
    """
    route = _routing(config, access)

    def dial(place: HeadPlace, token: str) -> Head:
        try:
            return HttpHeads(route(), client).head(place, token)
        except NoAnswer as error:
            raise HeadUnreachable(str(error)) from error

    return dial


def _routing(config: OperatorConfig, access: Callable[[], Access]) -> Callable[[], Route]:
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
