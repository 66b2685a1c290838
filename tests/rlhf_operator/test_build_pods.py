"""The pods of a job whose manifest, or whose chart, shapes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from rlhf_api.on_cluster import OWN_CONTAINERS, OWN_VOLUMES
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.pod.volumes import is_reserved_path
from rlhf_api.status import JobPhase
from rlhf_operator.apply.build.owned_objects import config_map
from rlhf_operator.apply.build.ray_cluster import ray_cluster
from rlhf_operator.config import JobDefaults, PodPolicy
from rlhf_operator.decide.acceptance import find_refusal
from rlhf_operator.decide.observed import Observed
from rlhf_operator.observe.defaults import apply_defaults, select_defaults
from rlhf_operator.observe.parse import parse_job
from rlhf_operator.observe.planner import plan_key
from rlhf_operator.observe.pod_policy import find_pods_not_allowed

from ..rlhf_api.pod_cases import EVERYTHING
from . import test_build_cluster as clusters
from .test_build_cluster import ALLOWED_VOLUMES, GPUS, OWNER, containers, environment, pods
from .world import World, manifest

TAINTED = {"tolerations": [{"key": "team", "operator": "Exists"}]}
DATA: dict[str, Any] = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
}
POOL = {"name": "a100", "nodes": 2, "devicesPerNode": 4, "gpu": "A100-80G"}


def job(defaults: dict[str, Any] | None = None, **resources: Any) -> RLHFJob:
    """A job as it is accepted, with these fields of spec.resources."""
    written = RLHFJob.model_validate(manifest(resources={"nodePools": [POOL], **resources}))
    chart = JobDefaults.model_validate(defaults or {}).for_namespace("team")
    return apply_defaults(written, select_defaults(written, None, chart))


def cluster(defaults: dict[str, Any] | None = None, **resources: Any) -> Mapping[str, Any]:
    return ray_cluster(OWNER, job(defaults, **resources), 3, "manifest", "token", {})


def both(defaults: dict[str, Any] | None = None, **resources: Any) -> list[Mapping[str, Any]]:
    """The head's template and that of the pool."""
    return pods(cluster(defaults, **resources))


def mounts(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {each["mountPath"]: each for each in pod["spec"]["containers"][0]["volumeMounts"]}


def test_every_field_reaches_the_head_and_the_workers() -> None:
    copied = (
        *("nodeSelector", "affinity", "topologySpreadConstraints", "schedulerName"),
        *("priorityClassName", "runtimeClassName", "serviceAccountName"),
        *("automountServiceAccountToken", "terminationGracePeriodSeconds"),
    )
    plain = PodTemplate.model_validate(EVERYTHING).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    for pod in both(pod=EVERYTHING):
        metadata, spec = pod["metadata"], pod["spec"]
        assert EVERYTHING["labels"].items() <= metadata["labels"].items()
        assert EVERYTHING["annotations"].items() <= metadata["annotations"].items()
        assert {name: spec[name] for name in copied} == {name: plain[name] for name in copied}
        assert spec["tolerations"] == [{"operator": "Exists"}]
        [main] = spec["containers"]
        assert main["resources"]["limits"].items() >= plain["resources"]["limits"].items()
        assert main["resources"]["requests"]["ephemeral-storage"] == "10Gi"
        assert main["envFrom"][1]["prefix"] == "JUDGE_"
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert volumes["shared-mem"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
        assert [volumes[each["name"]] for each in plain["volumes"]] == plain["volumes"]
        assert [mounts(pod)[each["mountPath"]] for each in plain["volumeMounts"]] == plain[
            "volumeMounts"
        ]
        profile = {"type": "Localhost", "localhostProfile": "rlhf.json"}
        assert spec["securityContext"] == {
            **EVERYTHING["securityContext"],
            "seccompProfile": profile,
        }
        assert all(each["securityContext"]["seccompProfile"] == profile for each in containers(pod))


def test_pods_with_every_field_still_meet_the_restricted_profile() -> None:
    for pod in both(pod=EVERYTHING):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for volume in pod["spec"]["volumes"]:
            assert volume.keys() - {"name"} <= ALLOWED_VOLUMES
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False and own["runAsNonRoot"] is True
            assert own["capabilities"] == {"drop": ["ALL"]} and own["readOnlyRootFilesystem"]


def test_templates_cannot_take_the_names_and_paths_of_the_operator() -> None:
    made = pods(clusters.cluster(**clusters.EVERYTHING))
    of_kuberay = {"ray-logs", "wait-gcs-ready", "autoscaler"}
    volumes = {volume["name"] for pod in made for volume in pod["spec"]["volumes"]}
    assert volumes == {*OWN_VOLUMES} - of_kuberay
    names = {container["name"] for pod in made for container in containers(pod)}
    assert names == {*OWN_CONTAINERS} - of_kuberay
    assert all(is_reserved_path(path) for pod in made for path in mounts(pod))


def test_sidecars_start_first_and_init_containers_find_the_jobs_folder() -> None:
    (head, _) = both(pod=EVERYTHING)
    starting = head["spec"]["initContainers"]
    assert [each["name"] for each in starting] == ["proxy", "run-folder", "unpack"]
    proxy, _, unpack = starting
    assert proxy["restartPolicy"] == "Always" and "restartPolicy" not in unpack
    # Neither asks for a GPU, so neither sees one.
    for container in (proxy, unpack):
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert unpack["command"] == ["tar", "-x"] and unpack["resources"]["limits"]["cpu"] == "1"


def test_init_containers_of_the_operator_have_the_limits_of_the_pod() -> None:
    limits = {"cpu": "60m", "ephemeral-storage": "2Gi"}
    for pod in both(pod={"resources": {"limits": limits}}):
        [folder] = pod["spec"]["initContainers"]
        assert folder["resources"]["limits"].items() >= limits.items()


def test_all_nodes_may_be_tainted() -> None:
    for pod in both(pod=TAINTED):
        assert pod["spec"]["tolerations"] == [{"key": "team", "operator": "Exists"}]
    own = [{"key": "gpu", "operator": "Exists"}]
    head, worker = both(pod=TAINTED, nodePools=[{**POOL, "tolerations": own}])
    assert head["spec"]["tolerations"] == TAINTED["tolerations"]
    assert worker["spec"]["tolerations"] == [*TAINTED["tolerations"], *own]


def test_data_on_a_claim_is_mounted_read_only_by_all_pods() -> None:
    for pod in both(pod=DATA):
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "datasets"
        mount = mounts(pod)["/data"]
        assert (mount["name"], mount["readOnly"]) == ("data", True)


def test_the_head_and_a_pool_have_fields_of_their_own() -> None:
    pool = {**GPUS, "pod": {"nodeSelector": {"disk": "nvme"}, "schedulerName": "mine"}}
    head, worker = both(
        pod={"nodeSelector": {"zone": "a"}},
        headPod={"nodeSelector": {"zone": "b"}, "terminationGracePeriodSeconds": 60},
        nodePools=[pool],
    )
    assert head["spec"]["nodeSelector"] == {"zone": "b"} and "schedulerName" not in head["spec"]
    assert worker["spec"]["nodeSelector"] == {"zone": "a", "disk": "nvme", "gpu": "a100"}
    assert worker["spec"]["schedulerName"] == "mine"
    graces = [each["spec"]["terminationGracePeriodSeconds"] for each in (head, worker)]
    assert graces == [60, 30]


@pytest.mark.parametrize("name", ["nvidia.com/mig-3g.40gb", "amd.com/gpu"])
def test_devices_may_have_another_name(name: str) -> None:
    head, worker = both(nodePools=[{**POOL, "deviceResource": name}])
    resources = worker["spec"]["containers"][0]["resources"]
    assert resources["limits"][name] == resources["requests"][name] == "4"
    assert not any("nvidia.com/gpu" in each["resources"]["limits"] for each in containers(worker))
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(worker)
    assert environment(head)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_priority_of_pods_wins_over_that_of_the_job() -> None:
    document = manifest(
        resources={"nodePools": [{**POOL, "pod": {"priorityClassName": "high"}}]},
        priorityClassName="low",
    )
    made = ray_cluster(OWNER, RLHFJob.model_validate(document), 1, "m", "t", {})
    assert [each["spec"]["priorityClassName"] for each in pods(made)] == ["low", "high"]


def test_a_job_wins_over_the_chart_whichever_pods_either_names() -> None:
    chart = {
        "pod": {**TAINTED, "schedulerName": "of-all", "nodeSelector": {"chart": "all"}},
        "headPod": {"schedulerName": "of-heads"},
        "workerPod": {"schedulerName": "of-workers", "sharedMemory": "1Gi"},
    }
    head, worker = both(chart)
    assert [each["spec"]["schedulerName"] for each in (head, worker)] == ["of-heads", "of-workers"]
    for pod in both(chart, pod={"schedulerName": "of-the-job"}):
        assert pod["spec"]["schedulerName"] == "of-the-job"
        assert pod["spec"]["nodeSelector"] == {"chart": "all"}
        assert pod["spec"]["tolerations"] == TAINTED["tolerations"]


def test_a_namespace_has_defaults_of_its_own() -> None:
    chart = {
        "image": {"runtime": "all:1"},
        "pod": {"schedulerName": "of-all"},
        "namespaces": {"team": {"pod": {"schedulerName": "of-the-team"}}},
    }
    defaults = JobDefaults.model_validate(chart)
    team, other = defaults.for_namespace("team"), defaults.for_namespace("other")
    assert (team.pod.scheduler_name, other.pod.scheduler_name) == ("of-the-team", "of-all")
    assert team.image == other.image == defaults.image and team.head == defaults.head


def test_an_amount_that_a_job_writes_by_kubernetes_names_replaces_the_charts() -> None:
    limits = {"memory": "9Gi"}
    head, worker = both({"worker": {"memory": "7Gi"}}, pod={"resources": {"limits": limits}})
    for pod in (head, worker):
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["limits"]["memory"] == "9Gi" and "memory" not in resources["requests"]
    assert head["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}


def test_defaults_stay_as_they_were_when_the_job_was_accepted() -> None:
    written = RLHFJob.model_validate(manifest(resources={"nodePools": [POOL]}))
    before = select_defaults(written, None, JobDefaults())
    assert before.pod is None and before.head_pod is None
    later = JobDefaults(pod=PodTemplate(scheduler_name="new"))
    assert select_defaults(written, before, later) == before
    pinned = select_defaults(written, None, later)
    assert select_defaults(written, pinned, JobDefaults()) == pinned


def test_images_of_earlier_releases_are_not_bothered_with_pods() -> None:
    pool = {**POOL, "deviceResource": "amd.com/gpu", "pod": DATA}
    made = config_map(OWNER, job(pod=TAINTED, headPod=TAINTED, nodePools=[pool]))
    [text] = made["data"].values()
    resources = yaml.safe_load(text)["spec"]["resources"]
    assert resources["nodePools"] == [POOL] and not {"pod", "headPod"} & resources.keys()


def test_no_plan_depends_on_pods() -> None:
    shaped = job(pod=TAINTED, nodePools=[{**POOL, "deviceResource": "amd.com/gpu", "pod": DATA}])
    assert plan_key(shaped) == plan_key(job())


HOST_PATH = {"volumes": [{"name": "fast", "hostPath": {"path": "/mnt/nvme/a"}}]}


@pytest.mark.parametrize(
    ("pod", "policy", "path", "says"),
    [
        (
            HOST_PATH,
            {"hostPaths": ["/mnt/nvme"]},
            "volumes[0].hostPath.path",
            "podPolicy.hostPaths",
        ),
        (
            {"serviceAccountName": "trainer"},
            {"serviceAccountNames": ["trainer"]},
            "serviceAccountName",
            "podPolicy.serviceAccountNames",
        ),
        (
            {"sidecars": [{"name": "a", "image": "b"}]},
            {"extraContainers": True},
            "sidecars",
            "podPolicy.extraContainers",
        ),
        (
            {"initContainers": [{"name": "a", "image": "b"}]},
            {"extraContainers": True},
            "initContainers",
            "podPolicy.extraContainers",
        ),
    ],
)
def test_some_fields_need_the_charts_permission(
    pod: dict[str, Any], policy: dict[str, Any], path: str, says: str
) -> None:
    for resources, place in (
        ({"pod": pod}, "pod"),
        ({"headPod": pod}, "headPod"),
        ({"nodePools": [{**POOL, "pod": pod}]}, "nodePools[0].pod"),
    ):
        written = RLHFJob.model_validate(manifest(resources={"nodePools": [POOL], **resources}))
        refusal = find_pods_not_allowed(written, None)
        assert refusal is not None and refusal.reason == "PodNotAllowed"
        assert refusal.message.startswith(f"spec.resources.{place}.{path}: ")
        assert says in refusal.message
        assert find_pods_not_allowed(written, PodPolicy.model_validate(policy)) is None


@pytest.mark.parametrize("path", ["/mnt", "/mnt/nvme-of-others", "//mnt", "/"])
def test_a_host_path_is_allowed_in_the_named_folders_only(path: str) -> None:
    pod = {"volumes": [{"name": "fast", "hostPath": {"path": path}}]}
    policy = PodPolicy.model_validate({"hostPaths": ["/mnt/nvme"]})
    written = RLHFJob.model_validate(manifest(resources={"nodePools": [POOL], "pod": pod}))
    assert find_pods_not_allowed(written, policy) is not None


def test_the_chart_itself_needs_no_permission() -> None:
    chart = {"pod": {"serviceAccountName": "trainer", **HOST_PATH}}
    for pod in both(chart):
        assert pod["spec"]["serviceAccountName"] == "trainer"
        assert {"path": "/mnt/nvme/a", "type": ""} in [
            each.get("hostPath") for each in pod["spec"]["volumes"]
        ]


@pytest.mark.parametrize("name", ["required", "preferred", "unconstrained", "slice-required"])
def test_kueues_topology_reaches_the_pod_sets(name: str) -> None:
    # Kueue reads annotations of the pod templates of a RayCluster, one pod set for each.
    key = f"kueue.x-k8s.io/podset-{name}-topology"
    head, worker = both(nodePools=[{**POOL, "pod": {"annotations": {key: "example.com/rack"}}}])
    assert worker["metadata"]["annotations"][key] == "example.com/rack"
    assert key not in head["metadata"]["annotations"]


@pytest.mark.parametrize(
    "labels",
    [
        {"volcano.sh/queue-name": "gpus", "ray.io/priority-class-name": "high"},
        {
            "yunikorn.apache.org/app-id": "sort",
            "yunikorn.apache.org/queue": "root.gpus",
            "ray.io/gang-scheduling-enabled": "true",
        },
        {"kai.scheduler/queue": "gpus"},
    ],
    ids=["Volcano", "YuniKorn", "KAI"],
)
def test_labels_of_schedulers_reach_the_ray_cluster(labels: dict[str, str]) -> None:
    # KubeRay's plugins for these schedulers read them there, and label the pods.
    document = manifest(resources={"nodePools": [POOL]})
    document["metadata"]["labels"] = labels
    made = ray_cluster(OWNER, RLHFJob.model_validate(document), 1, "m", "t", {})
    assert labels.items() <= made["metadata"]["labels"].items()
    # The plan is for exactly these nodes: schedulers of gangs count on them.
    [group] = made["spec"]["workerGroupSpecs"]
    assert group["minReplicas"] == group["replicas"] == 2


def test_a_template_that_does_not_fit_the_charts_is_refused(world: World) -> None:
    world.defaults = JobDefaults.model_validate(
        {"pod": {"resources": {"limits": {"rdma/hca": 1, "cpu": 2}}}}
    )
    world.start_operator()
    pod = {"resources": {"requests": {"cpu": 4}}}
    world.submit(manifest(resources={"nodePools": [POOL], "pod": pod}))
    world.settle()
    assert world.phase() == (JobPhase.PENDING, "PodInvalid")
    message = world.status().message
    assert "spec.resources.headPod.resources.requests.cpu: a request that does not" in message
    assert "got 4, allowed at most the limit, 2" in message


def test_a_field_that_the_chart_does_not_allow_is_reported(world: World) -> None:
    pod = {"serviceAccountName": "trainer"}
    world.submit(manifest(resources={"nodePools": [POOL], "pod": pod}))
    world.settle()
    assert world.phase() == (JobPhase.PENDING, "PodNotAllowed")
    assert "got trainer, allowed none" in world.status().message


def test_variables_of_whole_objects_may_have_those_that_services_need() -> None:
    header = {"name": "Authorization", "valueFromEnv": "KEY"}
    rewards = [{"http": {"url": "http://judge/score", "headers": [header]}}]
    plain = manifest(resources={"nodePools": [POOL]}, rewards=rewards)
    pod = {"envFrom": [{"secretRef": {"name": "judge"}}]}
    whole = manifest(resources={"nodePools": [POOL], "pod": pod}, rewards=rewards)
    assert [refusal_of(each) for each in (plain, whole)] == ["VariableNotSet", None]


def refusal_of(document: dict[str, Any]) -> str | None:
    """The reason for which a new job is refused before it is planned."""
    metadata = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    raw = {**document, "metadata": {**metadata, "namespace": "team", "name": "sort"}}
    refusal = find_refusal(Observed(parse_job(raw, JobDefaults())))
    return None if refusal is None else refusal.reason
