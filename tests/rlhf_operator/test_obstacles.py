"""What stands in the way of a job's cluster is told, or overcome."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import Forbidden, Invalid, KubeError
from rlhf_kube.kinds import Kind
from rlhf_operator.apply.performer import MAX_EVENT_BYTES, event_manifest
from rlhf_operator.decide.actions import JobEvent
from rlhf_operator.observe.parse import find_pods_refusal

from .world import NAMESPACE, World, manifest

READY = ConditionType.CLUSTER_READY
QUOTA = 'pods "sort-1-head" is forbidden: exceeded quota: full'


def refusal(reason: str, message: str, status: str = "True") -> dict[str, Any]:
    """The condition that KubeRay sets when it cannot make or delete a pod."""
    return {"type": "ReplicaFailure", "status": status, "reason": reason, "message": message}


def told(world: World) -> str:
    return next(each.message for each in world.status().conditions if each.type is READY)


def test_pods_that_cannot_be_made_are_told_until_they_can(world: World) -> None:
    world.submit(manifest(startDeadlineSeconds=100))
    world.settle()
    said = refusal("FailedCreateHeadPod", f"FailedCreateHeadPod\n{QUOTA}")
    world.kube.edit(
        Kind.CLUSTER, NAMESPACE, "sort-1", lambda each: each.update(status={"conditions": [said]})
    )
    world.settle()
    assert world.condition(READY) == ("False", "PodsRefused")
    assert told(world) == (
        f"0 of 3 pods are ready; 3 do not exist: Kubernetes refuses its pods: {QUOTA}"
    )
    assert world.phase() == (JobPhase.PROVISIONING, "PodsRefused")
    assert QUOTA in world.status().message and world.events().count("PodsRefused") == 1
    assert world.condition(ConditionType.STALLED) is None, "another job's end makes room"
    world.kube.edit(Kind.CLUSTER, NAMESPACE, "sort-1", lambda each: each.update(status={}))
    world.settle()
    assert world.condition(READY) == ("False", "Provisioning") and QUOTA not in told(world)
    world.wait(120)
    assert world.phase() == (JobPhase.FAILED, "StartDeadlineExceeded")


@pytest.mark.parametrize(
    ("waits", "reason", "needs_change"),
    [
        ("CreateContainerConfigError", "Configuration", True),
        ("ErrImageNeverPull", "ImagePull", True),
        ("InvalidImageName", "ImagePull", True),
        # A registry may be away for a while.
        ("ImagePullBackOff", "ImagePull", False),
        ("CreateContainerError", "Configuration", False),
    ],
)
def test_a_pod_that_only_a_change_lets_start_stalls_its_job(
    world: World, waits: str, reason: str, needs_change: bool
) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    pod = next(name for name in world.pods() if "-worker-" in name)
    state = {"waiting": {"reason": waits}}
    world.set_pod(pod, containerStatuses=[{"name": "ray-worker", "state": state}])
    world.settle()
    assert world.phase() == (JobPhase.PROVISIONING, reason)
    assert world.condition(ConditionType.STALLED) == (("True", reason) if needs_change else None)
    world.run_kuberay()
    world.wait(60)
    assert world.phase()[0] is JobPhase.RUNNING
    assert world.condition(ConditionType.STALLED) is None


def test_a_quota_that_counts_what_a_container_does_not_state_is_told_with_what_to_do() -> None:
    said = refusal("FailedCreateHeadPod", "failed quota: all: must specify limits.cpu for: init")
    problem = find_pods_refusal({"status": {"conditions": [said]}})
    assert problem is not None and problem.needs_change
    assert "cpuLimit" in problem.message and "LimitRange" in problem.message


def test_pods_that_a_policy_refuses_stall_their_job(world: World) -> None:
    world.submit(manifest())
    world.settle()
    said = refusal("FailedCreateWorkerPod", "no PriorityClass with name urgent was found")
    world.kube.edit(
        Kind.CLUSTER, NAMESPACE, "sort-1", lambda made: made.update(status={"conditions": [said]})
    )
    world.settle()
    assert world.condition(ConditionType.STALLED) == ("True", "PodsRefused")


def test_a_head_whose_node_is_lost_is_told(world: World) -> None:
    world.run_to_training()
    head = next(name for name in world.pods() if "-head-" in name)
    world.set_pod(head, conditions=[{"type": "Ready", "status": "False"}])
    world.wait(world.settings.unreachable_seconds + world.settings.poll_seconds)
    assert world.phase() == (JobPhase.RUNNING, "HeadUnreachable")
    delete_but_never_end(world, head)
    world.wait(world.settings.wait_seconds)
    assert f"{head} is still terminating" in told(world)


def delete_but_never_end(world: World, pod: str) -> None:
    """What becomes of a pod whose node's kubelet is gone."""
    held = {"finalizers": ["test/kubelet"]}
    world.kube.edit(Kind.POD, NAMESPACE, pod, lambda each: each["metadata"].update(held))
    world.kube.remove(Kind.POD, NAMESPACE, pod)


def owned_objects(world: World) -> set[Kind]:
    """ConfigMaps, Secrets and NetworkPolicies of clusters."""
    return {kind for kind, _, _ in world.kube.objects} & {
        Kind.CONFIG_MAP,
        Kind.SECRET,
        Kind.POLICY,
    }


def remove(world: World, kind: Kind) -> str:
    """Delete the object of a kind of which there is one; its name."""
    ((namespace, name),) = [(each[1], each[2]) for each in world.kube.objects if each[0] is kind]
    world.kube.remove(kind, namespace, name)
    return name


@pytest.mark.parametrize("kind", [Kind.CONFIG_MAP, Kind.SECRET, Kind.POLICY])
def test_what_a_person_deletes_beside_a_cluster_is_made_again(world: World, kind: Kind) -> None:
    world.run_to_training()
    before = owned_objects(world)
    name = remove(world, kind)
    world.wait(1000)
    assert owned_objects(world) == before and (kind, NAMESPACE, name) in world.kube.objects
    assert world.phase()[0] is JobPhase.RUNNING and world.clusters() == ["sort-1"]


def test_what_could_not_be_made_again_is_tried_again_soon(world: World) -> None:
    world.run_to_training()
    before = owned_objects(world)
    for kind in (Kind.CONFIG_MAP, Kind.SECRET, Kind.POLICY):
        remove(world, kind)
    world.kube.trouble = lambda verb, kind: (
        Forbidden("quota") if (verb, kind) == ("create", Kind.SECRET) else None
    )
    world.wait(1000)
    assert owned_objects(world) == before - {Kind.SECRET}, "one that is refused holds up no other"
    assert world.phase()[0] is JobPhase.RUNNING
    assert world.condition(ConditionType.CLUSTER_READY) == ("True", "Ready")
    counted = world.metrics.registry.get_sample_value
    reason = {"reason": "KubernetesForbidden"}
    assert counted("rlhf_operator_reconcile_errors_total", reason), "people are warned"
    world.head().advance(2)
    world.wait(60)
    progress = world.status().progress
    assert progress is not None and progress.step == 2, "the job goes on"
    world.kube.trouble = lambda verb, kind: None
    world.wait(120)
    assert owned_objects(world) == before, "not a quarter of an hour later"


@pytest.mark.parametrize("kind", [Kind.CONFIG_MAP, Kind.SECRET, Kind.POLICY])
def test_it_is_made_again_sooner_where_a_pod_may_miss_it(world: World, kind: Kind) -> None:
    world.run_to_training()
    world.edit_job(failurePolicy={"maxRestarts": 1})  # another manifest, for the same cluster
    name = remove(world, kind)
    world.kill_pod("worker")
    world.run_kuberay(ready=False)
    world.set_pod(world.pods()[-1], conditions=[])
    world.wait(100)
    assert (kind, NAMESPACE, name) in world.kube.objects, "under the name that its pods look for"


def test_code_that_is_made_later_lets_the_job_begin(world: World) -> None:
    world.submit(manifest(code={"configMap": {"name": "mine"}}))
    world.settle()
    assert world.phase() == (JobPhase.PENDING, "CodeNotFound")
    place = {"name": "mine", "namespace": NAMESPACE}
    world.kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": place})
    world.wait(world.settings.wait_seconds)
    assert world.clusters() == ["sort-1"]


@pytest.mark.parametrize(
    "conditions",
    [
        [refusal("FailedCreateWorkerPod", "quota", status="False")],
        [refusal("FailedDeleteWorkerPod", "not found")],
        [{"type": "HeadPodReady", "status": "True", "reason": "FailedCreate"}],
        ["FailedCreateHeadPod"],
        "FailedCreateHeadPod",
        None,
    ],
)
def test_what_is_no_refusal_of_pods_is_none(conditions: Any) -> None:
    assert find_pods_refusal({"status": {"conditions": conditions}}) is None


def test_a_pod_of_somebody_else_with_the_jobs_label_holds_nothing_up(world: World) -> None:
    labels = world.labels()  # so that the job's NetworkPolicy lets it in
    metadata = {"name": "tensorboard", "namespace": NAMESPACE, "labels": labels}
    world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {}})
    world.submit(manifest())
    world.settle()
    assert world.clusters() == ["sort-1"]


def secrets(world: World) -> dict[str, str]:
    """The token in each Secret."""
    return {
        name: each["data"]["auth_token"]
        for (kind, _, name), each in world.kube.objects.items()
        if kind is Kind.SECRET
    }


def test_an_operator_with_another_key_makes_clusters_that_it_can_reach(world: World) -> None:
    world.run_to_training()
    [(first, token)] = secrets(world).items()
    world.identity = replace(world.identity, key=b"x" * 32)
    world.start_operator()
    world.wait(120)
    assert world.clusters() == ["sort-2"] and world.status().restarts.clusters == 1
    made = secrets(world)
    assert made.pop(first) == token, "nobody changes a Secret"
    [(second, another)] = made.items()
    cluster = world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-2"]
    assert cluster["spec"]["authOptions"]["secretName"] == second and another != token
    world.run_kuberay()
    world.wait(30)
    assert world.head("sort-2").submitted == ["sort-2-0"]


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_cluster_whose_workers_somebody_has_changed_is_replaced(
    world: World, replicas: int
) -> None:
    world.run_to_training()
    world.kube.edit(
        Kind.CLUSTER,
        NAMESPACE,
        "sort-1",
        lambda made: made["spec"]["workerGroupSpecs"][0].update(replicas=replicas),
    )
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    (text,) = world.told("ClusterLost")
    assert f"got {replicas} of pool a100, allowed 2 of pool a100" in text
    assert "edit the job's nodePools instead" in text
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]


def test_an_event_takes_as_much_of_a_text_as_api_servers_do(world: World) -> None:
    world.submit(manifest())
    observed = world.reconciler.observer.observe((NAMESPACE, "sort"), lambda: None)
    assert observed is not None
    now = datetime.now(UTC)
    text = "ключ " * 300
    note = event_manifest(observed.job, JobEvent("Reason", text), now)["message"]
    assert text.startswith(note) and MAX_EVENT_BYTES - 4 < len(note.encode()) <= MAX_EVENT_BYTES
    assert event_manifest(observed.job, JobEvent("Reason", "short"), now)["message"] == "short"


def test_why_a_pod_is_not_started_is_told_in_its_nodes_words(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    pod = next(name for name in world.pods() if "-worker-" in name)
    waits = {"waiting": {"reason": "ContainerCreating"}}
    world.set_pod(pod, containerStatuses=[{"name": "ray-worker", "state": waits}])
    uid = world.kube.objects[Kind.POD, NAMESPACE, pod]["metadata"]["uid"]
    words = 'MountVolume.SetUp failed for volume "run": mount failed: exit status 32'
    for component, reason, note in (
        ("kubelet", "FailedMount", words),
        ("default-scheduler", "FailedScheduling", "0/1 nodes are available"),
    ):
        world.kube.create(
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"generateName": f"{pod}-", "namespace": NAMESPACE},
                "regarding": {"uid": uid},
                "reportingController": component,
                "reason": reason,
                "type": "Warning",
                "note": note,
            }
        )
    before = world.kube.reads
    world.wait(60)
    assert world.phase() == (JobPhase.PROVISIONING, "NotStarting")
    assert f"{pod} of pool a100: kubelet reports FailedMount: {words}" in world.status().message, (
        "the scheduler's words are outdated"
    )
    assert world.kube.reads - before <= 3, "nothing is asked of pods that start in time"
    world.run_kuberay()
    world.wait(60)
    assert world.head().submitted == ["sort-1-0"]


def test_a_kuberay_that_is_too_old_is_told_with_the_version_that_is_needed(world: World) -> None:
    said = 'strict decoding error: unknown field "spec.authOptions.secretName"'

    def refuse(verb: str, kind: Kind) -> KubeError | None:
        return Invalid(f"400: {said}") if (verb, kind) == ("create", Kind.CLUSTER) else None

    world.kube.trouble = refuse
    world.submit(manifest())
    for _ in range(3):
        world.reconcile((NAMESPACE, "sort"))
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "KubeRayTooOld")
    told = [each.message for each in world.status().conditions if each.reason == "KubeRayTooOld"]
    assert "allowed 1.6 or newer" in told[0] and said in told[0]
    world.kube.trouble = lambda verb, kind: None
    world.wait(60)
    assert world.clusters() == ["sort-1"]
