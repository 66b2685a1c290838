"""Addresses of a head's ports, and the headers that requests to them carry. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Final, Protocol
from urllib.parse import urlsplit

from rlhf_operator.clients.head.protocol import HeadUnreachable

PLACEHOLDERS: Final = frozenset({"namespace", "cluster", "port"})
"""Names that a template has in braces."""


@dataclass(frozen=True)
class Address:
    """One port of one head."""

    url: str
    """Prefix of all paths, without a slash at its end."""
    headers: Mapping[str, str] = field(repr=False)
    """Headers of every request. They are credentials, so they are never shown."""
    proxied: bool = False
    """True if the API server is in between, which may answer instead of the head."""


@dataclass(frozen=True)
class Certificates:
    """PEM files for TLS. Default: the system's authorities, and no client certificate."""

    authority: str | None = None
    """Certificates of the authorities that sign the server's."""
    client: str | None = None
    """The client's own certificate."""
    client_key: str | None = None
    """The private key of that certificate."""


SYSTEM_CERTIFICATES: Final = Certificates()


@dataclass(frozen=True)
class HeadPod:
    """The pod of a head, verified to be the job's own."""

    # Addressed by pod: anybody could own a Service of the name that KubeRay would use.

    namespace: str
    cluster: str
    """The RayCluster."""
    pod: str
    """The pod's name."""
    ip: str | None
    """The pod's address. None: not assigned yet."""


class Route(Protocol):
    """A network path to all heads."""

    @property
    def certificates(self) -> Certificates: ...

    def address(self, pod: HeadPod, port: int, token: str) -> Address:
        """Return the address of a head's port, with its bearer token.

        Raises:
            HeadUnreachable: the pod has no address yet.
        """
        ...


@dataclass(frozen=True)
class InsideCluster:
    """Direct connections from a pod to the head's pod."""

    certificates: Certificates = SYSTEM_CERTIFICATES

    def address(self, pod: HeadPod, port: int, token: str) -> Address:
        """Return the address of a head's port, with its bearer token."""
        if pod.ip is None:
            raise HeadUnreachable(f"the pod {pod.pod} has no address yet")
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        return Address(f"http://{host}:{port}", {"Authorization": f"Bearer {token}"})


@dataclass(frozen=True)
class ThroughApiServer:
    """Connections from outside by the API server's proxy of pods, with its own credentials."""

    server: str
    """The API server's address, such as https://10.0.0.1:6443, with or without a path."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its credentials, such as an Authorization. Create another route when they change."""
    certificates: Certificates = SYSTEM_CERTIFICATES

    def __post_init__(self) -> None:
        _check_url(self.server)

    def address(self, pod: HeadPod, port: int, token: str) -> Address:
        """Return the address of a head's port, with its bearer token."""
        path = f"namespaces/{pod.namespace}/pods/{pod.pod}:{port}/proxy"
        # The API server uses Authorization itself and does not forward it. Ray accepts its token
        # under this name, too.
        headers = {**self.headers, "X-Ray-Authorization": f"Bearer {token}"}
        return Address(f"{self.server.rstrip('/')}/api/v1/{path}", headers, proxied=True)


@dataclass(frozen=True)
class ByTemplate:
    """Connections to a URL with {namespace}, {cluster} and {port}: tests and unusual networks."""

    template: str
    certificates: Certificates = SYSTEM_CERTIFICATES

    def __post_init__(self) -> None:
        _check_url(self.template)
        names = [name for _, name, _, _ in Formatter().parse(self.template) if name is not None]
        if set(names) != PLACEHOLDERS:
            raise ValueError(
                f"an address of heads must name {_in_braces(PLACEHOLDERS)} and nothing else in "
                f"braces: got {self.template!r}"
            )

    def address(self, pod: HeadPod, port: int, token: str) -> Address:
        """Return the address of a head's port, with its bearer token."""
        url = self.template.format(namespace=pod.namespace, cluster=pod.cluster, port=port)
        return Address(url.rstrip("/"), {"Authorization": f"Bearer {token}"})


def _check_url(url: str) -> None:
    # No query or fragment, as a path is appended; no user, as its password would be shown.
    parts = urlsplit(url)
    is_complete = parts.scheme in ("http", "https") and parts.netloc
    if not is_complete or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "an address of heads must begin with http:// or https:// and a host, without user, "
            f"query or fragment: got one with scheme {parts.scheme!r}"
        )


def _in_braces(names: frozenset[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
