"""What a real API server tells the operator's watches, and which events lead to reconciles."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
import pytest

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.kinds import Kind
from rlhf_operator.config import OperatorConfig
from rlhf_operator.process import watching
from rlhf_operator.process.app import App
from rlhf_operator.process.stop import Stop
from rlhf_operator.process.watching import CHILDREN, Watch

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .accounts import bind, make_account, unbind
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
    left: set[str] = field(default_factory=set)
    """Names of tasks that did not end with their watch."""
    told: list[tuple[str, str | None]] = field(default_factory=list)
    """Of what the handlers of pods and clusters were told: names, types of event."""

    def _on_child(self, kind: Kind, event: kopf.RawEvent) -> None:
        super()._on_child(kind, event)
        self.told.append((event["object"]["metadata"]["name"], event["type"]))


@pytest.fixture
def listener(defined: Kubectl, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Listener:
    monkeypatch.setenv("KUBECONFIG", str(defined.kubeconfig))
    world = World(FakeHeads(listens=False))
    config = OperatorConfig(namespaces=(namespace,))
    listener = Listener(config, world.cached, world.reconciler, in_cluster=False)

    class OpenWatch(Watch):
        """Hears of every object that is sent, whatever its labels."""

        def _registry(self, around: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
            registry = super()._registry(around)
            for kind in CHILDREN:
                kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(self.note)
            return registry

        def _close(self, loop: asyncio.AbstractEventLoop) -> None:
            super()._close(loop)
            listener.left |= {task.get_name() for task in asyncio.all_tasks(loop)}

        async def note(self, name: str | None, **_: Any) -> None:
            listener.sent.add(name or "")

    monkeypatch.setattr("rlhf_operator.process.app.Watch", OpenWatch)
    return listener


def make(kubectl: Kubectl, namespace: str, kind: Kind, name: str, labels: dict[str, str]) -> None:
    metadata = {"name": name, "labels": labels}
    document = {**kind.header, "metadata": metadata, "spec": CONTENT[kind]}
    kubectl.send("create", namespace, document)


def during(app: App, script: Callable[[], None]) -> None:
    """Do this while the operator runs."""

    async def run() -> None:
        stop = Stop()
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
        words = (f"--namespace={namespace}", kind.plural, "ours", f"{JOB_LABEL}-")
        defined("label", *words)
        wait_until(lambda: ("ours", "DELETED") in listener.told, SECONDS, "the loss of a label")
        defined("label", *words[:-1], f"{JOB_LABEL}=sort")
        wait_until(lambda: ("ours", "ADDED") in listener.told, SECONDS, "a label again")

    during(listener, script)
    assert listener.sent == {"ours", "new"}
    assert not listener.left, "kopf's workers, which have just had an event, among them"


@pytest.fixture
def lost(defined: Kubectl) -> Iterator[str]:
    """Another namespace, in which the operator's role is taken away."""
    name = f"lost-{uuid.uuid4().hex[:8]}"
    defined("create", "namespace", name)
    yield name
    defined("delete", "namespace", name, "--wait=false")


def test_a_role_that_is_lost_while_it_is_watched_is_told_and_ends_no_other_watch(
    listener: Listener,
    defined: Kubectl,
    namespace: str,
    lost: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = make_account(defined, namespace, tmp_path / "kubeconfig")
    bind(defined, lost, namespace)
    monkeypatch.setenv("KUBECONFIG", str(account))
    monkeypatch.setattr(watching, "WATCH_SECONDS", 1)
    monkeypatch.setattr(watching, "BACKOFF_SECONDS", (0.1,))
    listener.config = OperatorConfig(namespaces=(lost, namespace))

    def is_watched(name: str) -> bool:
        watched = listener.reconciler.metrics.registry.get_sample_value
        return watched("rlhf_operator_namespace_watched", {"namespace": name}) == 1

    def script() -> None:
        wait_until(lambda: is_watched(lost) and is_watched(namespace), SECONDS, "both watches")
        unbind(defined, lost)
        wait_until(lambda: not is_watched(lost), SECONDS, "the loss of one")
        make(defined, namespace, Kind.POD, "ours", OURS)
        wait_until(lambda: ("ours", "ADDED") in listener.told, SECONDS, "what is new in the other")
        assert is_watched(namespace)
        bind(defined, lost, namespace)
        make(defined, lost, Kind.POD, "found", OURS)
        wait_until(lambda: "found" in listener.sent, SECONDS, "what is in it")
        assert len([each for each in threading.enumerate() if "watch of" in each.name]) == 2

    during(listener, script)
    assert not listener.left
