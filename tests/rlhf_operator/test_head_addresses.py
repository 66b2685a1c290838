"""Where heads are, by each of the ways to them."""

from __future__ import annotations

import pytest

from rlhf_operator.clients.head.addresses import (
    ByTemplate,
    Certificates,
    InsideCluster,
    Route,
    ThroughApiServer,
)
from rlhf_operator.clients.head.protocol import HeadUnreachable

from .awaited import place

TOKEN = "secret-token"


@pytest.mark.parametrize(
    ("ip", "url"),
    [("10.0.0.7", "http://10.0.0.7:8265"), ("fd00::7", "http://[fd00::7]:8265")],
)
def test_inside_the_cluster_the_pods_own_address_is_asked(ip: str, url: str) -> None:
    address = InsideCluster().address(place("team", "job-0", ip), 8265, TOKEN)
    assert address.url == url
    assert address.headers == {"Authorization": f"Bearer {TOKEN}"}
    assert not address.proxied


def test_a_pod_without_an_address_is_unreachable() -> None:
    with pytest.raises(HeadUnreachable, match="job-0-head has no address yet"):
        InsideCluster().address(place("team", "job-0"), 8265, TOKEN)


def test_outside_the_api_server_passes_on_what_is_not_its_own() -> None:
    route = ThroughApiServer("https://10.0.0.1:6443/k8s/", {"Authorization": "Bearer mine"})
    address = route.address(place("team", "job-0"), 8290, TOKEN)
    path = "api/v1/namespaces/team/pods/job-0-head:8290/proxy"
    assert address.url == f"https://10.0.0.1:6443/k8s/{path}"
    assert address.headers == {
        "Authorization": "Bearer mine",
        "X-Ray-Authorization": f"Bearer {TOKEN}",
    }
    assert address.proxied


def test_a_template_places_namespace_cluster_and_port() -> None:
    route = ByTemplate("http://127.0.0.1:9999/{namespace}/{cluster}/{port}/")
    address = route.address(place("team", "job-0"), 8265, TOKEN)
    assert address.url == "http://127.0.0.1:9999/team/job-0/8265"
    assert address.headers == {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "template",
    [
        "http://127.0.0.1/{namespace}/{cluster}",
        "http://127.0.0.1/{namespace}/{cluster}/{port}/{token}",
        "http://127.0.0.1/{namespace}/{cluster}/{port}/{}",
        "http://127.0.0.1/{namespace}/{cluster}/{port}?a=b",
        "http://user:word@127.0.0.1/{namespace}/{cluster}/{port}",
        "ftp://127.0.0.1/{namespace}/{cluster}/{port}",
        "127.0.0.1/{namespace}/{cluster}/{port}",
        "",
    ],
)
def test_a_template_that_cannot_be_right_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="an address of heads must") as refused:
        ByTemplate(template)
    assert "word@" not in str(refused.value)


def test_an_api_server_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http:// or https://"):
        ThroughApiServer("10.0.0.1:6443")


@pytest.mark.parametrize(
    "route",
    [
        InsideCluster(),
        ThroughApiServer("https://k8s", {"Authorization": TOKEN}, Certificates("ca.pem")),
        ByTemplate("http://{cluster}.{namespace}:{port}"),
    ],
)
def test_credentials_are_not_shown(route: Route) -> None:
    address = route.address(place("team", "job-0", "10.0.0.7"), 8265, TOKEN)
    assert TOKEN not in repr(address) and TOKEN not in repr(route)
    assert TOKEN not in address.url
