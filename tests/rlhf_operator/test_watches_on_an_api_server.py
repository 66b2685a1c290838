"""What a real API server tells the operator's watches, and what of it leads to looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kopf
import pytest

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_operator.app import CHILDREN, App
from rlhf_operator.config import OperatorConfig
from rlhf_operator.kube.protocol import Kind

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import SECONDS
from .fake_head import FakeHeads
from .world import World

pytestmark = pytest.mark.cluster
OURS = {JOB_LABEL: "sort"}
CONTAINER = {"name": "ray", "image": "nothing:1"}
TEMPLATE = {"containers": [CONTAINER], "nodeSelector": {"never": "there"}}
CONTENT: dict[Kind, dict[str, Any]] = {
    Kind.POD: {**TEMPLATE, "automountServiceAccountToken": False},
    Kind.CLUSTER: {
        "suspend": True,
        "headGroupSpec": {"rayStartParams": {}, "template": {"spec": TEMPLATE}},
    },
}


@dataclass
class Listener(App):
    """An operator that also notes whatever Kubernetes sends, of jobs or not."""

    sent: set[str] = field(default_factory=set)
    """Names of objects."""
    told: list[tuple[str, str | None]] = field(default_factory=list)
    """Of what the handlers of pods and clusters were told: names, types of event."""

    def _registry(self, has_kuberay: bool) -> kopf.OperatorRegistry:
        registry = super()._registry(has_kuberay)
        for kind in CHILDREN:
            place = kind.value
            on = kopf.on.event(place.group, place.version, place.plural, registry=registry)
            on(self.on_any)
        return registry

    async def on_any(self, name: str | None, **_: Any) -> None:
        self.sent.add(name or "")

    def _on_child(self, kind: Kind, event: kopf.RawEvent) -> None:
        super()._on_child(kind, event)
        self.told.append((event["object"]["metadata"]["name"], event["type"]))


@pytest.fixture
def listener(defined: Kubectl, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Listener:
    monkeypatch.setenv("KUBECONFIG", str(defined.kubeconfig))
    world = World(FakeHeads(listens=False))
    config = OperatorConfig(namespaces=(namespace,))
    return Listener(config, world.cached, world.reconciler, in_cluster=False)


def make(kubectl: Kubectl, namespace: str, kind: Kind, name: str, labels: dict[str, str]) -> None:
    resource = kind.value
    metadata = {"name": name, "labels": labels}
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    kubectl.send("create", namespace, {**head, "spec": CONTENT[kind]})


def during(app: App, script: Callable[[], None]) -> None:
    """Do this while the operator runs."""

    async def run() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(app.run(stop))
        try:
            await asyncio.to_thread(script)
        finally:
            stop.set()
            await running

    asyncio.run(run())


@pytest.mark.parametrize("kind", CHILDREN)
def test_only_what_is_of_a_job_is_asked_for_and_the_loss_of_its_label_is_told(
    listener: Listener, defined: Kubectl, namespace: str, kind: Kind
) -> None:
    make(defined, namespace, kind, "stranger", {})
    make(defined, namespace, kind, "ours", OURS)

    def script() -> None:
        wait_until(lambda: ("ours", None) in listener.told, SECONDS, "what was there")
        make(defined, namespace, kind, "new-stranger", {})
        make(defined, namespace, kind, "new", OURS)
        wait_until(lambda: ("new", "ADDED") in listener.told, SECONDS, "what is new")
        words = (f"--namespace={namespace}", kind.value.plural, "ours", f"{JOB_LABEL}-")
        defined("label", *words)
        wait_until(lambda: ("ours", "DELETED") in listener.told, SECONDS, "the loss of a label")
        defined("label", *words[:-1], f"{JOB_LABEL}=sort")
        wait_until(lambda: ("ours", "ADDED") in listener.told, SECONDS, "a label again")

    during(listener, script)
    assert listener.sent == {"ours", "new"}
