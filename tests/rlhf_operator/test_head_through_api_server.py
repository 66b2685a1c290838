"""The way to a head from outside of the cluster: a real API server passes requests on."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml

from rlhf_api.on_cluster import DASHBOARD_PORT, REPORT_PORT
from rlhf_operator.head.addresses import Certificates, ThroughApiServer, head_service
from rlhf_operator.head.http import HttpHeads
from rlhf_operator.head.protocol import Head, HeadRefused, HeadUnreachable, SubmissionState

from ..cluster.kubectl import Kubectl
from ..cluster.session import skip_or_fail
from ..waiting import wait_until
from .fake_head import FakeHead
from .fake_head_server import FakeHeadServer, Reply, Request, answer

pytestmark = pytest.mark.cluster

CLUSTER = "job-0"
TOKEN = "token-of-one-cluster"
ENDPOINT_SECONDS = 30.0
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


@pytest.fixture
def heads(
    route: ThroughApiServer, namespace: str, kubectl: Kubectl, servers: dict[str, FakeHeadServer]
) -> Iterator[HttpHeads]:
    """Heads behind the API server, which knows where the ports of one of them are."""
    spec = {"clusterIP": "None", "ports": [{"name": n, "port": p} for n, p in PORTS.items()]}
    kubectl.apply(namespace, part("v1", "Service", spec=spec))
    pretend_pod(kubectl, namespace)
    ports = [{"name": name, "port": server.port} for name, server in servers.items()]
    places = {"addresses": [place(namespace)], "ports": ports}
    kubectl.apply(namespace, part("v1", "Endpoints", subsets=[places]))
    heads = HttpHeads(route)
    wait_until(
        lambda: is_reached(heads.head(namespace, CLUSTER, TOKEN)),
        ENDPOINT_SECONDS,
        "the API server's way to the head",
    )
    yield heads
    heads.close()


def part(version: str, kind: str, **fields: Any) -> dict[str, Any]:
    """An object of the head's Service."""
    metadata = {"name": head_service(CLUSTER)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def pretend_pod(kubectl: Kubectl, namespace: str) -> None:
    """A pod that nobody runs, at this machine's address: the API server only leads to pods."""
    containers = [{"name": "head", "image": "localhost/none:1"}]
    spec = {"schedulerName": "nobody", "containers": containers}
    kubectl.apply(namespace, part("v1", "Pod", spec=spec))
    status = {"status": {"podIP": own_address(), "podIPs": [{"ip": own_address()}]}}
    words = (f"pod/{head_service(CLUSTER)}", "--subresource=status", "--type=merge")
    kubectl("patch", f"--namespace={namespace}", *words, f"--patch={json.dumps(status)}")


def place(namespace: str) -> dict[str, Any]:
    """Where the pod is, for Endpoints."""
    pod = {"kind": "Pod", "namespace": namespace, "name": head_service(CLUSTER)}
    return {"ip": own_address(), "targetRef": pod}


def is_reached(head: Head) -> bool:
    try:
        return head.submissions() == ()
    except HeadUnreachable:
        return False


def test_a_driver_is_led_from_outside(
    heads: HttpHeads, namespace: str, fake: FakeHead, servers: dict[str, FakeHeadServer]
) -> None:
    head = heads.head(namespace, CLUSTER, TOKEN)
    head.submit("job-0-0", ["rlhf", "drive", "a b"], {"A": "b"})
    assert fake.driver.entrypoint == "exec rlhf drive 'a b'"
    assert fake.token == TOKEN
    with pytest.raises(HeadRefused):
        heads.head(namespace, CLUSTER, "another-operators-token").submissions()
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
    with pytest.raises(HeadUnreachable, match='services "job-1-head-svc" not found'):
        heads.head(namespace, "job-1", TOKEN).submissions()


def test_a_head_whose_pod_is_not_ready_is_unreachable_and_reports_nothing(
    heads: HttpHeads, namespace: str, kubectl: Kubectl
) -> None:
    places = {
        "notReadyAddresses": [place(namespace)],
        "ports": [{"name": name, "port": 1} for name in PORTS],
    }
    kubectl.apply(namespace, part("v1", "Endpoints", subsets=[places]))
    head = heads.head(namespace, CLUSTER, TOKEN)
    wait_until(lambda: not is_reached(head), ENDPOINT_SECONDS, "an end of the way to the head")
    with pytest.raises(HeadUnreachable, match="no endpoints available"):
        head.submissions()
    assert head.report() is None


def test_whom_the_api_server_does_not_know_the_head_did_not_refuse(
    heads: HttpHeads, namespace: str, route: ThroughApiServer
) -> None:
    credentials = {"Authorization": "Bearer nobody-knows-this-one"}
    authority = Certificates(route.certificates.authority)
    stranger = HttpHeads(replace(route, headers=credentials, certificates=authority))
    with pytest.raises(HeadUnreachable, match="Unauthorized") as caught:
        stranger.head(namespace, CLUSTER, TOKEN).submissions()
    assert "nobody-knows" not in str(caught.value)
    stranger.close()


def test_a_server_that_nobody_vouches_for_is_not_trusted(
    heads: HttpHeads, namespace: str, route: ThroughApiServer
) -> None:
    stranger = HttpHeads(replace(route, certificates=Certificates()))
    with pytest.raises(HeadUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        stranger.head(namespace, CLUSTER, TOKEN).submissions()
    stranger.close()
