"""Where heads are, by each of the ways to them."""

from __future__ import annotations

import pytest

from rlhf_operator.head.addresses import (
    ByTemplate,
    Certificates,
    InsideCluster,
    Route,
    ThroughApiServer,
)

TOKEN = "secret-token"


def test_inside_the_cluster_the_service_of_kuberay_is_asked() -> None:
    address = InsideCluster().address("team", "job-0", 8265, TOKEN)
    assert address.url == "http://job-0-head-svc.team.svc:8265"
    assert address.headers == {"Authorization": f"Bearer {TOKEN}"}
    assert not address.proxied


def test_outside_the_api_server_passes_on_what_is_not_its_own() -> None:
    route = ThroughApiServer("https://10.0.0.1:6443/k8s/", {"Authorization": "Bearer mine"})
    address = route.address("team", "job-0", 8290, TOKEN)
    place = "api/v1/namespaces/team/services/job-0-head-svc:8290/proxy"
    assert address.url == f"https://10.0.0.1:6443/k8s/{place}"
    assert address.headers == {
        "Authorization": "Bearer mine",
        "X-Ray-Authorization": f"Bearer {TOKEN}",
    }
    assert address.proxied


def test_a_template_places_namespace_cluster_and_port() -> None:
    route = ByTemplate("http://127.0.0.1:9999/{namespace}/{cluster}/{port}/")
    address = route.address("team", "job-0", 8265, TOKEN)
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
    address = route.address("team", "job-0", 8265, TOKEN)
    assert TOKEN not in repr(address) and TOKEN not in repr(route)
    assert TOKEN not in address.url
