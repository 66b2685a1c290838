"""Pods that are lost, or do not come up, as KubeRay and the scheduler have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest

from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster
READY = ConditionType.CLUSTER_READY
Loss = Callable[[Team, str], AbstractContextManager[None]]
SPOT_SECONDS = 180.0
"""Kubernetes waits before it collects the pods of a node that is gone."""
NOWHERE = {"kubernetes.io/hostname": "no-such-node"}


def pool(**fields: Any) -> dict[str, Any]:
    """A worker of one GPU."""
    return {
        "nodePools": [{"name": "gpu", "nodes": 1, "devicesPerNode": 1, "gpu": "A100-80G", **fields}]
    }


def pod_of(team: Team, name: str, role: str) -> Manifest:
    wait_until(lambda: team.pod(name, role) is not None, SECONDS, f"the {role} of {name}")
    found = team.pod(name, role)
    assert found is not None
    return found


def tell(team: Team, pod: Manifest, status: Mapping[str, Any]) -> None:
    """What the pod's kubelet would say."""
    place = (f"--namespace={team.namespace}", "pod", pod["metadata"]["name"])
    patch = f"--patch={json.dumps({'status': status})}"
    team.kubectl("patch", *place, "--subresource=status", patch)


def container(pod: Manifest, **fields: Any) -> dict[str, Any]:
    """The status of its one container."""
    (own,) = pod["spec"]["containers"]
    common = {"name": own["name"], "image": own["image"], "imageID": "", "restartCount": 0}
    return {**common, "ready": False, **fields}


def bind(team: Team, pod: Manifest) -> None:
    """A node takes it, of which nobody plays the kubelet."""
    name = pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "silent"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}/binding"
    team.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(binding))


@contextmanager
def no_more_pods(team: Team) -> Iterator[None]:
    """A quota that is in force."""
    place = f"--namespace={team.namespace}"
    team.kubectl("create", "quota", "full", place, "--hard=count/pods=0")
    counted = "jsonpath={.status.hard.count/pods}=0"
    team.kubectl("wait", "resourcequota/full", place, f"--for={counted}", "--timeout=60s")
    yield
    team.kubectl("delete", "quota", "full", place)


def test_a_lost_head_gets_a_driver_again_just_once(team: Team) -> None:
    head = team.train("headless")
    first = pod_of(team, "headless", "head")
    head.go_down()
    team.delete("pod", first["metadata"]["name"])
    head.restart()  # the next pod knows of no submission
    wait_until(
        lambda: team.status("headless").restarts.drivers == 1, SECONDS, "the loss being noticed"
    )
    head.come_back()
    team.wait_for_driver("headless-1-1")
    head.advance(2)
    team.wait_for("Running", "headless")
    second = pod_of(team, "headless", "head")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert team.names(Kind.CLUSTER, "headless") == ["headless-1"]
    restarts = team.status("headless").restarts
    assert (restarts.drivers, restarts.clusters, restarts.total) == (1, 0, 1)
    assert "HeadLost" in team.events("headless")
    head.finish()
    team.wait_for("Succeeded", "headless")
    assert head.submitted == ["headless-1-0", "headless-1-1"]


@contextmanager
def tainted(team: Team, node: str) -> Iterator[None]:
    """A cloud takes a spot node back: Kubernetes evicts the pods that do not tolerate that."""
    team.kubectl("taint", "node", node, "reclaimed=soon:NoExecute")
    try:
        yield
    finally:  # later tests need the node
        team.kubectl("taint", "node", node, "reclaimed-")


@contextmanager
def removed(team: Team, node: str) -> Iterator[None]:
    """A node is gone at once: Kubernetes collects its pods about a minute later."""
    found = team.kubectl.get("default", f"node/{node}")
    metadata = {key: found["metadata"][key] for key in ("name", "labels", "annotations")}
    team.kubectl("delete", "node", node)
    try:
        yield
    finally:
        team.kubectl.apply("default", {**found, "metadata": metadata})


@pytest.mark.parametrize(
    ("name", "loss"),
    [("tainted", tainted), pytest.param("removed", removed, marks=pytest.mark.nightly)],
)
def test_a_head_on_a_spot_node_may_be_lost(team: Team, name: str, loss: Loss) -> None:
    head = team.train(name, failurePolicy={"maxRestarts": 0, "backoffSeconds": 1})
    first = pod_of(team, name, "head")
    head.go_down()
    with loss(team, first["spec"]["nodeName"]):
        head.restart()  # the next pod knows of no submission
        wait_until(
            lambda: team.status(name).restarts.disruptions == 1, SPOT_SECONDS, "a disruption"
        )
        head.come_back()
        team.wait_for_driver(f"{name}-1-1")
        second = pod_of(team, name, "head")
        assert second["spec"]["nodeName"] != first["spec"]["nodeName"]
    head.advance(2)
    team.wait_for("Running", name)
    assert team.status(name).restarts.since_checkpoint == 0
    head.finish()
    team.wait_for("Succeeded", name)


def test_a_lost_worker_is_the_drivers_affair(team: Team) -> None:
    head = team.train("workless")
    assert team.condition("workless", READY) == ("True", "Ready")
    worker = pod_of(team, "workless", "worker")
    with no_more_pods(team):
        team.delete("pod", worker["metadata"]["name"])
        team.wait_for_condition("workless", READY, "False", "PodsRefused")
        assert team.phase("workless") == "Running"
    team.wait_for_condition("workless", READY, "True", "Ready")
    assert pod_of(team, "workless", "worker")["metadata"]["uid"] != worker["metadata"]["uid"]
    assert head.submitted == ["workless-1-0"]
    assert team.phase("workless") == "Running" and team.status("workless").restarts.total == 0
    team.delete("rlhfjob", "workless")


def test_a_pod_that_no_node_takes_is_told(team: Team) -> None:
    team.submit(small("homeless", resources=pool(nodeSelector=NOWHERE), startDeadlineSeconds=5))
    team.wait_for_condition("homeless", READY, "False", "Unschedulable")
    assert "no node fits" in team.status("homeless").message
    wait_until(lambda: "Unschedulable" in team.events("homeless"), SECONDS, "an event")
    team.wait_for("Failed", "homeless")
    assert team.status("homeless").reason == "StartDeadlineExceeded"
    team.wait_for_rest("homeless")


def test_an_image_that_cannot_be_pulled_is_told(team: Team) -> None:
    team.submit(small("imageless", resources=pool(nodeSelector=NOWHERE)))
    worker = pod_of(team, "imageless", "worker")
    bind(team, worker)
    said = {"reason": "ErrImagePull", "message": "no such host"}
    tell(team, worker, {"containerStatuses": [container(worker, state={"waiting": said})]})
    team.wait_for_condition("imageless", READY, "False", "ImagePull")
    wait_until(lambda: "ImagePull" in team.events("imageless"), SECONDS, "an event")
    assert "image runtime:1: ErrImagePull: no such host" in team.status("imageless").message
    team.delete("rlhfjob", "imageless")


def test_what_killed_a_worker_is_told_though_its_pod_is_gone(team: Team) -> None:
    head = team.train("hungry")
    worker = pod_of(team, "hungry", "worker")
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    status = {
        "phase": "Failed",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [container(worker, state={"terminated": ended})],
    }
    tell(team, worker, status)
    wait_until(lambda: "OutOfMemory" in team.events("hungry"), SECONDS, "an event")
    wait_until(
        lambda: pod_of(team, "hungry", "worker")["metadata"]["uid"] != worker["metadata"]["uid"],
        SECONDS,
        "another worker",
    )
    assert head.submitted == ["hungry-1-0"]
    team.delete("rlhfjob", "hungry")
