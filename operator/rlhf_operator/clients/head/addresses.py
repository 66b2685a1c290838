"""Where the ports of a head answer, and what a request must carry to get there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Final, Protocol
from urllib.parse import urlsplit

from rlhf_operator.clients.head.protocol import HeadUnreachable

PLACES: Final = frozenset({"namespace", "cluster", "port"})
"""What a template names in braces."""


@dataclass(frozen=True)
class Address:
    """One port of one head."""

    url: str
    """What a path is appended to; it does not end with a slash."""
    headers: Mapping[str, str] = field(repr=False)
    """What every request carries: credentials, so they are never shown."""
    proxied: bool = False
    """Whether the API server stands in between and may answer in the head's place."""


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form for TLS; nothing given: the system's authorities, and no certificate."""

    authority: str | None = None
    """Certificates of those who may vouch for the server."""
    client: str | None = None
    """The client's own certificate."""
    client_key: str | None = None
    """Its private key."""


SYSTEM_CERTIFICATES: Final = Certificates()


@dataclass(frozen=True)
class HeadPlace:
    """The pod of a head, as the operator has verified that it is the job's own: anybody could own a
    Service of the name that KubeRay gives one."""

    namespace: str
    cluster: str
    """The RayCluster."""
    pod: str
    """The pod's name."""
    ip: str | None
    """Its address. None: it has none yet."""


class Route(Protocol):
    """A way to all heads."""

    @property
    def certificates(self) -> Certificates: ...

    def address(self, place: HeadPlace, port: int, token: str) -> Address:
        """Where a port of a head answers, with its bearer token.

        Raises:
            HeadUnreachable: it has no address yet.
        """
        ...


@dataclass(frozen=True)
class InsideCluster:
    """From a pod: the address of the head's pod."""

    certificates: Certificates = SYSTEM_CERTIFICATES

    def address(self, place: HeadPlace, port: int, token: str) -> Address:
        """Where a port of a head answers, with its bearer token."""
        if place.ip is None:
            raise HeadUnreachable(f"the pod {place.pod} has no address yet")
        host = f"[{place.ip}]" if ":" in place.ip else place.ip
        return Address(f"http://{host}:{port}", {"Authorization": f"Bearer {token}"})


@dataclass(frozen=True)
class ThroughApiServer:
    """From outside: the API server's proxy of pods, with its own credentials."""

    server: str
    """The API server's address, such as https://10.0.0.1:6443; a path may follow."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its credentials, such as an Authorization. Make another route when they change."""
    certificates: Certificates = SYSTEM_CERTIFICATES

    def __post_init__(self) -> None:
        _check_url(self.server)

    def address(self, place: HeadPlace, port: int, token: str) -> Address:
        """Where a port of a head answers, with its bearer token.

        The API server takes Authorization for itself and does not pass it on, so the head's token
        travels under Ray's other name for it.
        """
        path = f"namespaces/{place.namespace}/pods/{place.pod}:{port}/proxy"
        headers = {**self.headers, "X-Ray-Authorization": f"Bearer {token}"}
        return Address(f"{self.server.rstrip('/')}/api/v1/{path}", headers, proxied=True)


@dataclass(frozen=True)
class ByTemplate:
    """By an address with {namespace}, {cluster} and {port} in it: tests and unusual networks."""

    template: str
    certificates: Certificates = SYSTEM_CERTIFICATES

    def __post_init__(self) -> None:
        _check_url(self.template)
        named = [name for _, name, _, _ in Formatter().parse(self.template) if name is not None]
        if set(named) != PLACES:
            raise ValueError(
                f"an address of heads must name {_in_braces(PLACES)} and nothing else in braces: "
                f"got {self.template!r}"
            )

    def address(self, place: HeadPlace, port: int, token: str) -> Address:
        """Where a port of a head answers, with its bearer token."""
        url = self.template.format(namespace=place.namespace, cluster=place.cluster, port=port)
        return Address(url.rstrip("/"), {"Authorization": f"Bearer {token}"})


def _check_url(url: str) -> None:
    """Only http and https, nothing that a path cannot follow, and no password to show."""
    parts = urlsplit(url)
    complete = parts.scheme in ("http", "https") and parts.netloc
    if not complete or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "an address of heads must begin with http:// or https:// and a host, without user, "
            f"query or fragment: got one with scheme {parts.scheme!r}"
        )


def _in_braces(names: frozenset[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
