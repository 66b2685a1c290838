"""The RayCluster that is made for a job, and its pods."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rlhf_api.on_cluster import JOB_UID_VARIABLE
from rlhf_api.quantity import quantity_amount
from rlhf_api.spec.job import RLHFJob
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.pods import KUBERAY_ANNOTATIONS
from rlhf_operator.apply.build.ray_cluster import ray_cluster
from rlhf_operator.config import JobDefaults
from rlhf_operator.observe.defaults import apply_defaults, select_defaults

from .world import manifest

OWNER = Owner("team", "sort", "12345678-aaaa-bbbb-cccc-000000000000")
GPUS = {
    "name": "a100",
    "nodes": 2,
    "devicesPerNode": 4,
    "gpu": "A100-80G",
    "nodeSelector": {"gpu": "a100"},
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "slow", "value": "yes", "tolerationSeconds": 0},
    ],
    "resources": {"cpu": "16", "memory": "128Gi"},
    "env": [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "HF_HOME", "value": "/x"},
    ],
    "annotations": {"topology": "rack"},
}
CPUS = {"name": "spare", "nodes": 1, "device": "CPU", "devicesPerNode": 3}
GREEDY = CPUS | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
"""A pool of CPUs that would like to see the GPUs of its nodes."""
EVERYTHING: dict[str, Any] = {
    "resources": {"nodePools": [GPUS], "head": {"cpu": "2", "memory": "8Gi"}},
    "image": {
        "runtime": "runtime:1",
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "registry"}],
    },
    "priorityClassName": "batch",
    "hub": {"tokenSecretName": "hub-token", "cacheClaimName": "hub-cache"},
    "telemetry": {"wandb": {"project": "p", "secretName": "wandb-key"}},
    "code": {"git": {"url": "https://example.com/r.git", "revision": "main", "secretName": "git"}},
}
ON_CPUS = EVERYTHING | {"resources": {"nodePools": [CPUS]}}
PROXY = {"name": "net", "key": "p", "optional": True}
OF_ALL = [
    {"name": "NCCL_DEBUG", "value": "WARN"},
    {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "api-key"}}},
    {"name": "PROXY", "valueFrom": {"configMapKeyRef": PROXY}},
]
STAMPS = {"rlhf-operator.dev/operator-key": "0123"}
ALLOWED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
"""Of the restricted pod security profile."""


def filled(document: dict[str, Any], defaults: JobDefaults | None = None) -> RLHFJob:
    """A job with the chart's defaults, as it is accepted."""
    written = RLHFJob.model_validate(document)
    return apply_defaults(written, select_defaults(written, None, defaults or JobDefaults()))


def job(**spec: Any) -> RLHFJob:
    document = manifest(**spec)
    document["metadata"] |= {
        "labels": {
            "kueue.x-k8s.io/queue-name": "gpus",
            "rlhf-operator.dev/job": "another",
            "team": "a",
            "ray.io/scheduler-name": "volcano",
            "ray.io/cluster": "another",
        },
        "annotations": {
            "topology.example.com/block": "1",
            "ray.io/overwrite-container-cmd": "true",
            "storage.ray.io/x": "y",
            "x-ray.io/kept": "1",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
    }
    return filled(document)


def cluster(**spec: Any) -> Mapping[str, Any]:
    return ray_cluster(OWNER, job(**spec), 3, "manifest-of-the-job", "token-of-the-job", STAMPS)


def pods(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The head's template, and that of each group."""
    spec = made["spec"]
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from pod["spec"]["initContainers"]
    yield from pod["spec"]["containers"]


def environment(pod: Mapping[str, Any]) -> dict[str, Any]:
    env = pod["spec"]["containers"][0]["env"]
    values = {each["name"]: each.get("value", each.get("valueFrom")) for each in env}
    assert len(values) == len(env), "a variable is there twice"
    return values


def test_it_belongs_to_the_job_and_queues_find_it() -> None:
    metadata = cluster()["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("sort-3", "team")
    [owner] = metadata["ownerReferences"]
    assert owner["uid"] == OWNER.uid and owner["controller"] and owner["kind"] == "RLHFJob"
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert metadata["labels"]["rlhf-operator.dev/job"] == "sort"
    assert metadata["labels"]["team"] == "a"
    kept = {"topology.example.com/block": "1", "x-ray.io/kept": "1"}
    assert metadata["annotations"] == {**kept, **STAMPS}


def test_of_rays_own_labels_only_those_of_schedulers_reach_it() -> None:
    # KubeRay would obey the others: some leave pods without commands.
    labels = cluster()["metadata"]["labels"]
    assert labels["ray.io/scheduler-name"] == "volcano" and "ray.io/cluster" not in labels


def test_nobody_but_a_queue_suspends_it() -> None:
    assert "suspend" not in cluster()["spec"]


def test_the_head_computes_nothing() -> None:
    head = cluster(**EVERYTHING)["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == head["rayStartParams"]["num-gpus"] == "0"
    [container] = head["template"]["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "8Gi"},
        "limits": {"memory": "8Gi"},
    }
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"gcs-server": 6379, "dashboard": 8265, "report": 8290}


def test_every_pod_starts_ray_by_the_runtime() -> None:
    # KubeRay replaces the command of a pod without this annotation.
    pool = {"name": "workers", "annotations": {"ray.io/overwrite-container-cmd": "false"}}
    spec = cluster(resources={"nodePools": [pool]})["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        template = group["template"]
        assert template["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
        [container] = template["spec"]["containers"]
        module = container["command"][-1].rpartition(" -m ")[2]
        assert importlib.util.find_spec(module)
        # A raylet that waits for its agents to report a port ends on a busy node.
        parameters = group["rayStartParams"]
        ports = [value for name, value in parameters.items() if "port" in name]
        assert len(set(ports) - {"0"}) == 3
        probes = [
            container[name] for name in ("readinessProbe", "livenessProbe") if name in container
        ]
        probed = [probe["httpGet"]["port"] for probe in probes]
        assert int(parameters["dashboard-agent-listen-port"]) in probed


LIMITED = {"cpuLimit": "20", "ephemeralStorage": "50Gi"}


def test_a_quota_that_counts_limits_finds_them_at_every_container() -> None:
    pool = {**GPUS, "resources": {"cpu": "16", "memory": "128Gi", **LIMITED}}
    small = {"cpu": "20m", "cpuLimit": "60m", "memory": "8Gi", "ephemeralStorage": "1Gi"}
    spec = EVERYTHING | {"resources": {"nodePools": [pool], "head": small}}
    head, worker = pods(cluster(**spec))
    for pod, cpu, disk in ((head, "60m", "1Gi"), (worker, "20", "50Gi")):
        for container in containers(pod):
            requests, limits = (container["resources"][name] for name in ("requests", "limits"))
            assert {"cpu", "memory", "ephemeral-storage"} <= requests.keys() & limits.keys()
            assert requests["ephemeral-storage"] == limits["ephemeral-storage"] == disk
            # No request exceeds its limit: Kubernetes would refuse the pod.
            assert quantity_amount(requests["cpu"]) <= quantity_amount(limits["cpu"])
        assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == cpu
    assert worker["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "16"


def test_only_containers_with_gpus_see_gpus() -> None:
    greedy = EVERYTHING | {"resources": {"nodePools": [GREEDY]}}
    (head, gpus), (_, cpus) = pods(cluster(**EVERYTHING)), pods(cluster(**greedy))
    found = [each for pod in (head, gpus, cpus) for each in containers(pod)]
    for container in found:
        env = container["env"]
        seen = [each["value"] for each in env if each["name"] == "NVIDIA_VISIBLE_DEVICES"]
        has_gpus = "nvidia.com/gpu" in container["resources"]["limits"]
        assert seen == ([] if has_gpus else ["void"]), container["name"]
    names = [
        "run-folder",
        "fetch-code",
        "ray-head",
        *["run-folder", "fetch-code", "ray-worker"] * 2,
    ]
    assert [each["name"] for each in found] == names


def test_a_pool_is_a_group_of_workers() -> None:
    groups = [cluster(**spec)["spec"]["workerGroupSpecs"][0] for spec in (EVERYTHING, ON_CPUS)]
    assert [(each["groupName"], each["replicas"]) for each in groups] == [("a100", 2), ("spare", 1)]
    for group in groups:
        assert group["minReplicas"] == group["maxReplicas"] == group["replicas"]
    gpus, spare = (each["template"]["spec"]["containers"][0]["resources"] for each in groups)
    assert gpus["limits"] == {"memory": "128Gi", "nvidia.com/gpu": "4"}
    assert gpus["requests"] == {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": "4"}
    assert spare == {"requests": {}, "limits": {}}
    assert [each["rayStartParams"]["num-gpus"] for each in groups] == ["4", "0"]
    assert [int(each["rayStartParams"]["num-cpus"]) for each in groups] >= [4, 3]
    quoted = [shlex.split(each["rayStartParams"]["resources"]) for each in groups]
    assert [json.loads(text) for [text] in quoted] == [{"pool-a100": 1}, {"pool-spare": 1}]


def test_several_pools_are_several_groups() -> None:
    pools = [{"name": "big", "nodes": 2, "gpu": "H100"}, {"name": "small", "gpu": "L40S"}]
    groups = [{"roles": ["actor"], "pool": "big"}, {"roles": ["critic"], "pool": "small"}]
    spec = {
        "resources": {"nodePools": pools},
        "placement": {"type": "Manual", "groups": groups},
    }
    found = cluster(**spec)["spec"]["workerGroupSpecs"]
    assert [(each["groupName"], each["replicas"]) for each in found] == [("big", 2), ("small", 1)]


def test_a_limit_of_devices_makes_the_cluster_smaller() -> None:
    [group] = cluster(placement={"maxDevices": 2})["spec"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    assert group["replicas"] == 1 and container["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_pods_that_are_not_to_be_evicted_tell_autoscalers() -> None:
    own = {"karpenter.sh/do-not-disrupt": "false"}
    pools = [{**GPUS, "annotations": own}]
    head, worker = pods(cluster(resources={"nodePools": pools, "evictable": False}))
    safe = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    common = {safe: "false", **KUBERAY_ANNOTATIONS}
    assert head["metadata"]["annotations"] == {**common, "karpenter.sh/do-not-disrupt": "true"}
    assert worker["metadata"]["annotations"] == {**common, **own}, "the pool's own wins"
    assert pods(cluster())[0]["metadata"]["annotations"] == KUBERAY_ANNOTATIONS


def test_a_pool_says_where_its_pods_go() -> None:
    (head, worker), (_, spare) = pods(cluster(**EVERYTHING)), pods(cluster(**ON_CPUS))
    assert worker["spec"]["nodeSelector"] == {"gpu": "a100"}
    assert worker["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "slow", "operator": "Equal", "value": "yes", "tolerationSeconds": 0},
    ]
    assert worker["metadata"]["annotations"] == {"topology": "rack", **KUBERAY_ANNOTATIONS}
    assert not {"nodeSelector", "tolerations"} & {*spare["spec"], *head["spec"]}
    assert all(pod["spec"]["priorityClassName"] == "batch" for pod in (head, worker, spare))


def test_the_pools_own_variables_win_and_are_there_once() -> None:
    head, worker = (environment(pod) for pod in pods(cluster(**EVERYTHING)))
    spare = environment(pods(cluster(**ON_CPUS))[1])
    assert (worker["NCCL_DEBUG"], worker["HF_HOME"]) == ("INFO", "/x")
    assert "NCCL_DEBUG" not in head and head["HF_HOME"] == spare["HF_HOME"] == "/rlhf/hub"
    assert int(head["RAY_JOB_STOP_WAIT_TIME_S"]) > 0


def test_all_pods_have_the_jobs_variables_and_the_pools_own_win() -> None:
    head, worker = (environment(pod) for pod in pods(cluster(**EVERYTHING, env=OF_ALL)))
    assert (head["NCCL_DEBUG"], worker["NCCL_DEBUG"]) == ("WARN", "INFO")
    for pod in (head, worker):
        secret = {"name": "judge", "key": "api-key", "optional": False}
        assert pod["API_KEY"] == {"secretKeyRef": secret}
        assert pod["PROXY"] == {"configMapKeyRef": PROXY}
        assert pod["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_head_has_time_to_save_when_its_pod_is_ended() -> None:
    head, worker = pods(cluster(**EVERYTHING))
    hook = head["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["python", "-P", "-m", "rlhf_cli.pod_ending"]
    assert head["spec"]["terminationGracePeriodSeconds"] == 150
    assert worker["spec"]["terminationGracePeriodSeconds"] == 30
    assert "preStop" not in worker["spec"]["containers"][0]["lifecycle"]


def test_pods_of_workers_begin_to_import_when_they_start_and_never_fail_by_it() -> None:
    (head, gpu), (_, cpu) = pods(cluster(**EVERYTHING)), pods(cluster(**ON_CPUS))
    assert "postStart" not in head["spec"]["containers"][0]["lifecycle"]
    for pod, device in ((cpu, "CPU"), (gpu, "GPU")):
        assert environment(pod)["RLHF_FORK_SERVER"]
        hook = pod["spec"]["containers"][0]["lifecycle"]["postStart"]["exec"]["command"]
        assert hook[:2] == ["/bin/sh", "-c"]
        assert hook[2] == f"python -P -m rlhf_runtime.forkserver.pod_server {device} || true"


def test_secrets_are_references() -> None:
    for pod in pods(cluster(**EVERYTHING)):
        values = environment(pod)
        assert values["HF_TOKEN"] == {"secretKeyRef": {"name": "hub-token", "key": "HF_TOKEN"}}
        reference = {"secretKeyRef": {"name": "wandb-key", "key": "WANDB_API_KEY"}}
        assert values["WANDB_API_KEY"] == reference
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_without_secrets_there_are_no_variables_for_them() -> None:
    assert not {"HF_TOKEN", "WANDB_API_KEY"} & environment(pods(cluster())[0]).keys()


def test_the_token_is_the_jobs_own_secret() -> None:
    assert cluster()["spec"]["authOptions"] == {"mode": "token", "secretName": "token-of-the-job"}


@pytest.mark.parametrize("spec", [{}, EVERYTHING, {"code": {"configMap": {"name": "mine"}}}])
def test_pods_meet_the_restricted_profile(spec: dict[str, Any]) -> None:
    for pod in pods(cluster(**spec)):
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & pod["spec"].keys()
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True and context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in pod["spec"]["volumes"]:
            assert volume.keys() - {"name"} <= ALLOWED_VOLUMES
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False and own["runAsNonRoot"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not own.get("privileged") and own.get("runAsUser", 1) > 0
            assert not any("hostPort" in port for port in container.get("ports", ()))


def test_pods_hold_no_credentials_of_kubernetes() -> None:
    for pod in pods(cluster(**EVERYTHING)):
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_every_mounted_volume_is_there() -> None:
    for pod in pods(cluster(**EVERYTHING)):
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        for container in containers(pod):
            mounts = container["volumeMounts"]
            assert {each["name"] for each in mounts} <= volumes
            paths = [each["mountPath"] for each in mounts]
            assert len(set(paths)) == len(paths)


def mounted(made: Mapping[str, Any], path: str) -> list[tuple[Any, Any]]:
    """What each pod has at a path: the mount and its volume."""
    found = []
    for pod in pods(made):
        [container] = pod["spec"]["containers"]
        [mount] = [each for each in container["volumeMounts"] if each["mountPath"] == path]
        [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
        found.append((mount, volume))
    return found


def test_every_pod_has_the_jobs_folder_of_the_claim() -> None:
    for mount, volume in mounted(cluster(), "/rlhf/run"):
        assert mount["subPath"] == "sort"
        assert volume["persistentVolumeClaim"] == {"claimName": "shared"}


def test_the_head_knows_the_jobs_uid_whatever_the_job_sets() -> None:
    made = cluster(env=[{"name": JOB_UID_VARIABLE, "value": "another"}])
    head = made["spec"]["headGroupSpec"]["template"]
    assert environment(head)[JOB_UID_VARIABLE] == OWNER.uid


def test_the_folder_of_the_claim_can_be_named() -> None:
    storage = {"persistentVolumeClaim": {"claimName": "shared", "subPath": "a/b"}}
    for mount, _ in mounted(cluster(checkpoint={"storage": storage}), "/rlhf/run"):
        assert mount["subPath"] == "a/b"


def test_checkpoints_elsewhere_need_no_claim() -> None:
    made = cluster(checkpoint={"storage": {"uri": "s3://bucket/sort"}})
    for mount, volume in mounted(made, "/rlhf/run"):
        assert "subPath" not in mount and volume["emptyDir"] == {}


def test_shared_memory_is_memory() -> None:
    for _, volume in mounted(cluster(), "/dev/shm"):
        assert volume["emptyDir"] == {"medium": "Memory"}


def test_the_manifest_cannot_be_written_by_a_pod() -> None:
    for mount, volume in mounted(cluster(), "/etc/rlhf/job"):
        assert mount["readOnly"] is True and volume["configMap"] == {"name": "manifest-of-the-job"}


def test_code_of_a_config_map_is_mounted() -> None:
    for mount, volume in mounted(cluster(code={"configMap": {"name": "mine"}}), "/etc/rlhf/code"):
        assert mount["readOnly"] is True and volume["configMap"] == {"name": "mine"}


def test_defaults_fill_what_a_job_leaves_out_and_nothing_else() -> None:
    defaults = JobDefaults.model_validate(
        {
            "image": {"runtime": "default:1"},
            "nodePools": [{"name": "any", "nodes": 1}],
            "storage": {"uri": "s3://default"},
            "head": {"cpu": "3", "memory": "9Gi"},
            "worker": {"memory": "7Gi"},
        }
    )
    document = manifest()
    for name in ("image", "resources"):
        del document["spec"][name]
    document["spec"]["checkpoint"] = {"everySteps": 7}
    spec = filled(document, defaults).spec
    assert spec.image is not None and spec.image.runtime == "default:1"
    assert spec.checkpoint.every_steps == 7
    assert spec.checkpoint.storage is not None
    assert spec.checkpoint.storage.uri == "s3://default"
    [pool] = spec.resources.node_pools
    assert (pool.name, pool.resources.memory, pool.resources.cpu) == ("any", "7Gi", None)
    assert (spec.resources.head.cpu, spec.resources.head.memory) == ("3", "9Gi")
    kept = filled(manifest(**EVERYTHING), defaults).spec
    assert kept.image is not None and kept.image.runtime == "runtime:1"
    assert [each.name for each in kept.resources.node_pools] == ["a100"]
    assert kept.resources.node_pools[0].resources.memory == "128Gi"
    [without_memory] = filled(manifest(**ON_CPUS), defaults).spec.resources.node_pools
    assert (without_memory.name, without_memory.resources.memory) == ("spare", "7Gi")
    assert kept.checkpoint.storage is not None and kept.checkpoint.storage.uri is None
