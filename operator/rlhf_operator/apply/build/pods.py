"""The pods of a job's cluster. They meet the restricted profile and hold no credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_api.on_cluster import (
    CLIENT_PORT,
    CODE_FOLDER,
    DASHBOARD_PORT,
    FORK_SERVER,
    FORK_SERVER_VARIABLE,
    GCS_PORT,
    GPUS_VARIABLE,
    HUB_FOLDER,
    MANIFEST_FOLDER,
    NO_GPUS,
    REPORT_PORT,
    RUN_FOLDER,
)
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.environment import EnvironmentVariable
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device, NodePool, PodResources
from rlhf_operator.apply.build.code import code_init_containers, code_volume
from rlhf_operator.apply.build.owner import Owner

GPU_RESOURCE = "nvidia.com/gpu"
USER_ID = 1000
"""The image's user; files on volumes belong to its group."""
STOP_SECONDS = 120
"""How long a driver may take to finish its step and save after it was told to end."""
RAY_START_SECONDS = 120
"""How long Ray's own services may take to start on a busy head; Ray itself allows 30."""
DRAIN_SECONDS = 0
"""How long Ray lets work go on after a pod was told to end; Ray itself allows 30. A job goes on
from its checkpoint elsewhere, the sooner the better."""
PORTS = {
    "gcs-server": GCS_PORT,
    "dashboard": DASHBOARD_PORT,
    "client": CLIENT_PORT,
    "report": REPORT_PORT,
}
"""All of the head's: KubeRay adds its own only where none is declared."""
AGENT_PORT = 52365
"""Of the agent that Ray has on every node."""
HOME = "/home/rlhf"
SCRATCH_MOUNTS = (
    {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
    {"name": "scratch", "mountPath": HOME, "subPath": "home"},
)
"""All that can be written besides volumes: the image itself is read-only."""


MANIFEST_VOLUME = "job"


def head_pod(owner: Owner, job: RLHFJob, manifest: str) -> Mapping[str, Any]:
    """The pod of the head: Ray's own services and the driver, no device."""
    container = {
        **_container("ray-head", job, job.spec.resources.head, {}),
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
        "readinessProbe": _probe("/api/gcs_healthz", DASHBOARD_PORT, failures=10),
        "livenessProbe": {
            **_probe("/api/healthz", AGENT_PORT, failures=60),
            "initialDelaySeconds": 60,
            "periodSeconds": 10,
        },
    }
    return {"metadata": {"labels": owner.labels}, "spec": _pod(job, container, manifest)}


def worker_pod(owner: Owner, job: RLHFJob, pool: NodePool, manifest: str) -> Mapping[str, Any]:
    """A worker's pod: all devices of a node. KubeRay adds the liveness probe."""
    devices = {GPU_RESOURCE: str(pool.devices_per_node)} if pool.device is Device.GPU else {}
    container = {
        **_container("ray-worker", job, pool.resources, devices),
        "readinessProbe": _probe("/api/healthz", AGENT_PORT, failures=10),
        "lifecycle": {"postStart": {"exec": {"command": _start_fork_server(pool.device)}}},
    }
    fork_server = {"name": FORK_SERVER_VARIABLE, "value": FORK_SERVER}
    env = _last_of_each([*container["env"], fork_server, *_variables(pool.env)])
    pod = _pod(job, {**container, "env": env}, manifest)
    tolerations = [
        each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in pool.tolerations
    ]
    return {
        "metadata": {"labels": owner.labels, "annotations": dict(pool.annotations)},
        "spec": {
            **pod,
            "restartPolicy": "Never",
            "nodeSelector": dict(pool.node_selector),
            "tolerations": tolerations,
        },
    }


def _start_fork_server(device: Device) -> list[str]:
    """A command that never fails, for the kubelet would end the container: where there is no such
    server the driver starts one."""
    start = f"python -P -m rlhf_runtime.forkserver.pod_server {device.value}"
    return ["/bin/sh", "-c", f"{start} || true"]


def _pod(job: RLHFJob, container: Mapping[str, Any], manifest: str) -> dict[str, Any]:
    image = _image(job)
    before = [*_run_folder(job), *code_init_containers(job, _isolation())]
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": each.name} for each in image.pull_secrets],
        "initContainers": [_shielded(each) for each in before],
        "containers": [_shielded(container)],
        "volumes": _volumes(job, manifest),
    }
    if job.spec.priority_class_name is not None:
        pod["priorityClassName"] = job.spec.priority_class_name
    return pod


def _shielded(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container; without GPUs, if it asks for none, whatever its pool's environment says."""
    if GPU_RESOURCE in container["resources"]["limits"]:
        return container
    kept = [each for each in container.get("env", ()) if each["name"] != GPUS_VARIABLE]
    return {**container, "env": [*kept, {"name": GPUS_VARIABLE, "value": NO_GPUS}]}


def _container(
    name: str, job: RLHFJob, requests: PodResources, devices: Mapping[str, str]
) -> dict[str, Any]:
    image = _image(job)
    return {
        "name": name,
        "image": image.runtime,
        "imagePullPolicy": image.pull_policy,
        "env": _environment(job),
        "resources": _resources(requests, devices),
        "securityContext": _isolation(),
        "volumeMounts": [
            {"name": MANIFEST_VOLUME, "mountPath": MANIFEST_FOLDER, "readOnly": True},
            {"name": "code", "mountPath": CODE_FOLDER, "readOnly": True},
            {"name": "hub", "mountPath": HUB_FOLDER},
            {"name": "shared-mem", "mountPath": "/dev/shm"},
            *SCRATCH_MOUNTS,
            _run_mount(job),
        ],
    }


def _probe(path: str, port: int, failures: int) -> Mapping[str, Any]:
    """A probe of our own: KubeRay's begin late. Ray answers these without a token."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": 2,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _image(job: RLHFJob) -> ImageSpec:
    assert job.spec.image is not None, "jobs without an image are not accepted"
    return job.spec.image


def _isolation() -> Mapping[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _resources(requests: PodResources, devices: Mapping[str, str]) -> Mapping[str, Any]:
    """Memory is limited to what was asked for, so that a pod that takes more harms itself only;
    cores are not."""
    memory = {} if requests.memory is None else {"memory": requests.memory}
    cpu = {} if requests.cpu is None else {"cpu": requests.cpu}
    return {"requests": {**cpu, **memory, **devices}, "limits": {**memory, **devices}}


def _environment(job: RLHFJob) -> list[Mapping[str, Any]]:
    plain = {
        "HOME": HOME,
        "HF_HOME": HUB_FOLDER,
        "PYTHONUNBUFFERED": "1",
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(RAY_START_SECONDS),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DRAIN_SECONDS),
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    env: list[Mapping[str, Any]] = [{"name": name, "value": value} for name, value in plain.items()]
    hub, wandb = job.spec.hub, job.spec.telemetry.wandb
    if hub is not None and hub.token_secret_name is not None:
        env.append(_from_secret("HF_TOKEN", hub.token_secret_name))
    if wandb is not None and wandb.secret_name is not None:
        env.append(_from_secret("WANDB_API_KEY", wandb.secret_name))
    return _last_of_each([*env, *_variables(job.spec.env)])


def _variables(variables: Sequence[EnvironmentVariable]) -> Iterator[Mapping[str, Any]]:
    for each in variables:
        source = each.value_from
        if source is None:
            yield {"name": each.name, "value": each.value}
        else:
            reference = source.model_dump(mode="json", by_alias=True, exclude_none=True)
            yield {"name": each.name, "valueFrom": reference}


def _last_of_each(variables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each name once, with what was said last."""
    return list({each["name"]: each for each in variables}.values())


def _from_secret(name: str, secret: str) -> Mapping[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}


def _volumes(job: RLHFJob, manifest: str) -> Sequence[Mapping[str, Any]]:
    hub = job.spec.hub.cache_claim_name if job.spec.hub else None
    storage = job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage else None
    return [
        {"name": MANIFEST_VOLUME, "configMap": {"name": manifest}},
        code_volume(job),
        _claimed("hub", hub),
        {"name": "shared-mem", "emptyDir": {"medium": "Memory"}},
        {"name": "scratch", "emptyDir": {}},
        _claimed("run", claim.claim_name if claim else None),
    ]


def _claimed(name: str, claim: str | None) -> Mapping[str, Any]:
    if claim is None:
        return {"name": name, "emptyDir": {}}
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def _run_folder(job: RLHFJob) -> Sequence[Mapping[str, Any]]:
    """What makes the job's folder of the volume: the kubelet would make it as root."""
    storage = job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage else None
    if claim is None:
        return []
    image = _image(job)
    return [
        {
            "name": "run-folder",
            "image": image.runtime,
            "imagePullPolicy": image.pull_policy,
            "command": ["mkdir", "-p", f"/claim/{claim.sub_path or job.name}"],
            "securityContext": _isolation(),
            "resources": {
                "requests": {"cpu": "50m", "memory": "32Mi"},
                "limits": {"memory": "128Mi"},
            },
            "volumeMounts": [{"name": "run", "mountPath": "/claim"}],
        }
    ]


def _run_mount(job: RLHFJob) -> Mapping[str, Any]:
    """The job's folder of the volume; the driver's own folder where checkpoints go elsewhere."""
    storage = job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage else None
    mount = {"name": "run", "mountPath": RUN_FOLDER}
    return mount if claim is None else {**mount, "subPath": claim.sub_path or job.name}
