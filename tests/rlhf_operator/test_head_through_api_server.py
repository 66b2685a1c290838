"""The way to a head from outside of the cluster: a real API server passes requests on."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import yaml

from rlhf_api.on_cluster import DASHBOARD_PORT, REPORT_PORT
from rlhf_operator.clients.head.addresses import Certificates, HeadPod, ThroughApiServer
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHead
from rlhf_operator.clients.head.protocol import HeadRefused, HeadUnreachable, SubmissionState

from ..cluster.kubectl import Kubectl
from ..cluster.session import skip_or_fail
from ..waiting import wait_until
from .awaited import PlainHead, now
from .fake_head import FakeHead
from .fake_head_server import FakeHeadServer, Reply, Request, answer

pytestmark = pytest.mark.cluster

CLUSTER = "job-0"
TOKEN = "token-of-one-cluster"
POD = "job-0-head"
REACHED_SECONDS = 30.0
PORTS = {"dashboard": DASHBOARD_PORT, "report": REPORT_PORT}


def own_address() -> str:
    """One of this machine's addresses that a Service may lead to: not the loopback."""
    for found in psutil.net_if_addrs().values():
        for each in found:
            if each.family is socket.AF_INET and not each.address.startswith("127."):
                return each.address
    skip_or_fail("this machine has no address but the loopback's")


@pytest.fixture
def route(kubeconfig: Path, tmp_path: Path) -> ThroughApiServer:
    """The way that an administrator's kubeconfig opens."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    own = {each.address for found in psutil.net_if_addrs().values() for each in found}
    if urlsplit(cluster["server"]).hostname not in own:
        skip_or_fail("the API server is on another machine and cannot reach this test's head")

    def file(entry: dict[str, str], name: str) -> str:
        if f"{name}-data" not in entry:
            return str(kubeconfig.parent / entry[name])
        path = tmp_path / name
        path.write_bytes(base64.b64decode(entry[f"{name}-data"]))
        return str(path)

    authority = file(cluster, "certificate-authority")
    certificates = Certificates(
        authority, file(user, "client-certificate"), file(user, "client-key")
    )
    return ThroughApiServer(cluster["server"], certificates=certificates)


@pytest.fixture
def fake() -> FakeHead:
    return FakeHead()


@pytest.fixture
def servers(fake: FakeHead) -> Iterator[dict[str, FakeHeadServer]]:
    """The ports of the head, on this machine."""

    def server(port: int) -> FakeHeadServer:
        def respond(request: Request) -> Reply:
            return answer(fake, port, request.path, request)

        return FakeHeadServer(respond, own_address())

    servers = {name: server(port) for name, port in PORTS.items()}
    yield servers
    for each in servers.values():
        each.close()


@dataclass(frozen=True)
class Way:
    """To the ports of a pod, through the API server."""

    route: ThroughApiServer
    client: HttpClient
    namespace: str
    ports: Mapping[str, int]

    def head(self, pod: str = POD, token: str = TOKEN) -> PlainHead:
        place = HeadPod(self.namespace, CLUSTER, pod, None)
        addresses = [
            self.route.address(place, self.ports[name], token) for name in ("dashboard", "report")
        ]
        return PlainHead(HttpHead(self.client, *addresses))


@pytest.fixture
def way(
    route: ThroughApiServer, namespace: str, kubectl: Kubectl, servers: dict[str, FakeHeadServer]
) -> Iterator[Way]:
    """Heads behind the API server, which knows where the pod of one of them is."""
    pretend_pod(kubectl, namespace, POD)
    status = {"status": {"podIP": own_address(), "podIPs": [{"ip": own_address()}]}}
    words = (f"pod/{POD}", "--subresource=status", "--type=merge")
    kubectl("patch", f"--namespace={namespace}", *words, f"--patch={json.dumps(status)}")
    ports = {name: server.port for name, server in servers.items()}
    way = Way(route, HttpClient(route.certificates), namespace, ports)
    wait_until(lambda: is_reached(way.head()), REACHED_SECONDS, "the API server's way to the head")
    yield way
    now(way.client.close())


def pretend_pod(kubectl: Kubectl, namespace: str, name: str) -> None:
    """A pod that nobody runs."""
    containers = [{"name": "head", "image": "localhost/none:1"}]
    spec = {"schedulerName": "nobody", "containers": containers}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl.apply(namespace, pod)


def is_reached(head: PlainHead) -> bool:
    try:
        return head.submissions() == ()
    except HeadUnreachable:
        return False


def test_a_driver_is_led_from_outside(
    way: Way, fake: FakeHead, servers: dict[str, FakeHeadServer]
) -> None:
    head = way.head()
    head.submit("job-0-0", ["rlhf", "drive", "a b"], {"A": "b"})
    assert fake.driver.entrypoint == "exec rlhf drive 'a b'"
    assert fake.token == TOKEN
    with pytest.raises(HeadRefused):
        way.head(token="another-operators-token").submissions()
    fake.advance(2)
    report = head.report()
    assert report is not None and report.step == 2
    fake.finish()
    final = head.report()
    assert final is not None and head.final_report("job-0-0") == final
    head.acknowledge("job-0-0", final.sequence)
    assert head.submissions()[0].state is SubmissionState.SUCCEEDED
    head.stop("job-0-0")
    head.stop("job-0-unknown")
    servers["report"].close()
    assert head.report() is None
    head.acknowledge("job-0-0", final.sequence)
    with pytest.raises(HeadUnreachable, match='pods "job-1-head" not found'):
        way.head("job-1-head").submissions()


def test_a_pod_without_an_address_is_unreachable(way: Way, kubectl: Kubectl) -> None:
    pretend_pod(kubectl, way.namespace, "job-2-head")
    with pytest.raises(HeadUnreachable, match="the API server could not proxy the request"):
        way.head("job-2-head").submissions()


def test_whom_the_api_server_does_not_know_the_head_did_not_refuse(way: Way) -> None:
    credentials = {"Authorization": "Bearer nobody-knows-this-one"}
    client = HttpClient(Certificates(way.route.certificates.authority))
    stranger = replace(way, client=client, route=replace(way.route, headers=credentials))
    with pytest.raises(HeadUnreachable, match="Unauthorized") as caught:
        stranger.head().submissions()
    assert "nobody-knows" not in str(caught.value)
    now(client.close())


def test_a_server_that_nobody_vouches_for_is_not_trusted(way: Way) -> None:
    client = HttpClient(Certificates())
    with pytest.raises(HeadUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        replace(way, client=client).head().submissions()
    now(client.close())
