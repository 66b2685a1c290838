"""The pods of a job's cluster. They meet the restricted profile and have no credentials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.on_cluster import (
    AGENT_PORT,
    CODE_FOLDER,
    DASHBOARD_PORT,
    FORK_SERVER,
    FORK_SERVER_VARIABLE,
    GCS_PORT,
    GPUS_VARIABLE,
    GRACE_SECONDS,
    HOME_FOLDER,
    HUB_FOLDER,
    JOB_UID_VARIABLE,
    MANIFEST_FOLDER,
    NO_GPUS,
    RAY_START_SECONDS,
    REPORT_PORT,
    RUN_FOLDER,
)
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.pod.merge import merge_pods
from rlhf_api.spec.pod.pool_rules import GPU_RESOURCE
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.resources import Device, NodePool, PodResources
from rlhf_operator.apply.build.code import code_init_containers, code_volume
from rlhf_operator.apply.build.eviction import eviction_annotations
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.pod_template import (
    as_written,
    further_init_containers,
    isolation,
    pod_fields,
    sidecars,
    variables,
)
from rlhf_operator.apply.build.resources import (
    container_resources,
    init_container_resources,
    with_limits,
)
from rlhf_operator.decide.pod_variables import secret_variables

STOP_SECONDS = 120
"""Time for a driver to finish its step and save after SIGTERM."""
DRAIN_SECONDS = 0
"""Time that Ray lets work go on in a terminating pod. Ray's default of 30 would only delay the
restart from the checkpoint."""
PORTS = {"gcs-server": GCS_PORT, "dashboard": DASHBOARD_PORT, "report": REPORT_PORT}
"""All ports of the head: KubeRay adds its own only if none is declared."""
START_RAY = "ulimit -n 65536; exec python -P -m rlhf_runtime.controller.ray_start"
"""Shell command of Ray's containers: runs KubeRay's `ray start` with longer time limits."""
KUBERAY_ANNOTATIONS = {"ray.io/overwrite-container-cmd": "true"}
"""Annotations of the pods: KubeRay leaves the command to the template."""
START_LIMITS = {
    "RAY_agent_register_timeout_ms": str(1000 * RAY_START_SECONDS),
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(RAY_START_SECONDS),
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(RAY_START_SECONDS),
    "RAY_gcs_server_port_wait_time_s": str(RAY_START_SECONDS),
}
"""Ray's own time limits for the start of its processes, as environment variables."""
SCRATCH_MOUNTS = (
    {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
    {"name": "scratch", "mountPath": HOME_FOLDER, "subPath": "home"},
)
"""Writable folders besides volumes: the image is read-only."""
MANIFEST_VOLUME = "job"


def head_pod(owner: Owner, job: RLHFJob, manifest: str) -> Mapping[str, Any]:
    """Return the head's pod template: Ray's services and the driver, no device."""
    resources = job.spec.resources
    template = resources.merged_head_pod
    head = _container("ray-head", job, resources.head, template, {})
    uid = {"name": JOB_UID_VARIABLE, "value": owner.uid}
    container = {
        **head,
        "env": _last_by_name([*head["env"], uid]),
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
        "readinessProbe": _probe("/api/gcs_healthz", DASHBOARD_PORT, failures=10),
        "livenessProbe": {
            **_probe("/api/healthz", AGENT_PORT, failures=60),
            # Slow starts are the readiness probe's affair: a restart of the head ends the driver.
            "initialDelaySeconds": 60,
            "periodSeconds": 10,
        },
        # A pod that is drained ends with its driver's state saved.
        "lifecycle": {
            "preStop": {"exec": {"command": ["python", "-P", "-m", "rlhf_cli.pod_ending"]}}
        },
    }
    spec = {
        "terminationGracePeriodSeconds": STOP_SECONDS + GRACE_SECONDS,
        **_pod(job, resources.head, template, container, manifest),
    }
    return {"metadata": _metadata(owner, job, template, {}), "spec": spec}


def worker_pod(owner: Owner, job: RLHFJob, pool: NodePool, manifest: str) -> Mapping[str, Any]:
    """Return a worker's pod template, with all devices of a node."""
    template = _with_fields_of_pool(job.spec.resources.merged_pod(pool), pool)
    devices = {} if pool.gpu_resource is None else {pool.gpu_resource: str(pool.devices_per_node)}
    container = {
        **_container("ray-worker", job, pool.resources, template, devices),
        "readinessProbe": _probe("/api/healthz", AGENT_PORT, failures=10),
        "lifecycle": {"postStart": {"exec": {"command": _start_fork_server(pool.device)}}},
    }
    fork_server = {"name": FORK_SERVER_VARIABLE, "value": FORK_SERVER}
    # Variables of the pool come last: they replace those of the job.
    env = _last_by_name([*container["env"], fork_server, *variables(pool.env)])
    pod = _pod(job, pool.resources, template, {**container, "env": env}, manifest, devices)
    return {
        "metadata": _metadata(owner, job, template, pool.annotations),
        "spec": {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            **pod,
            # KubeRay replaces a worker that has failed by another pod.
            "restartPolicy": "Never",
        },
    }


def _with_fields_of_pool(template: PodTemplate, pool: NodePool) -> PodTemplate:
    """Return a template with the fields that a pool has beside its own template."""
    own = PodTemplate.model_construct(
        node_selector=pool.node_selector, tolerations=pool.tolerations
    )
    return merge_pods(template, own)


def _metadata(
    owner: Owner, job: RLHFJob, template: PodTemplate, annotations: Mapping[str, str]
) -> Mapping[str, Any]:
    return {
        # Own labels win: the operator selects pods by them.
        "labels": {**template.labels, **owner.labels},
        "annotations": {
            **eviction_annotations(job),
            **template.annotations,
            **annotations,
            **KUBERAY_ANNOTATIONS,
        },
    }


def _start_fork_server(device: Device) -> list[str]:
    """Return a command that starts the fork server and never fails."""
    # The kubelet ends a container whose postStart hook fails. Without the server the driver starts
    # one.
    start = f"python -P -m rlhf_runtime.forkserver.pod_server {device.value}"
    return ["/bin/sh", "-c", f"{start} || true"]


def _pod(
    job: RLHFJob,
    resources: PodResources,
    template: PodTemplate,
    container: Mapping[str, Any],
    manifest: str,
    devices: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    image = _image(job)
    limited = with_limits(resources, template.resources)
    init_containers = [
        # First, since others may need them: proxies, for example.
        *sidecars(template),
        *_run_folder(job, limited, template),
        *code_init_containers(job, limited, isolation(template)),
        *further_init_containers(template),
    ]
    pod: dict[str, Any] = {
        # Else every Service of the namespace adds variables, which Ray may read as its settings.
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": secret.name} for secret in image.pull_secrets],
        "initContainers": [
            _hide_gpus(init_container, devices or {}) for init_container in init_containers
        ],
        "containers": [_hide_gpus(container, devices or {})],
        "volumes": _volumes(job, template, manifest),
    }
    if job.spec.priority_class_name is not None:
        pod["priorityClassName"] = job.spec.priority_class_name
    return pod | pod_fields(template)


def _hide_gpus(container: Mapping[str, Any], devices: Mapping[str, str]) -> Mapping[str, Any]:
    """Hide the node's GPUs from a container that requests none, whatever its pool's env says."""
    if {GPU_RESOURCE, *devices} & container["resources"]["limits"].keys():
        return container
    kept = [entry for entry in container.get("env", ()) if entry["name"] != GPUS_VARIABLE]
    return {**container, "env": [*kept, {"name": GPUS_VARIABLE, "value": NO_GPUS}]}


def _container(
    name: str,
    job: RLHFJob,
    requests: PodResources,
    template: PodTemplate,
    devices: Mapping[str, str],
) -> dict[str, Any]:
    image = _image(job)
    return {
        "name": name,
        "image": image.runtime,
        "imagePullPolicy": image.pull_policy,
        "command": ["/bin/bash", "-c", START_RAY],
        "env": _environment(job),
        "envFrom": [as_written(source) for source in template.env_from],
        "resources": container_resources(requests, template.resources, devices),
        "securityContext": isolation(template),
        "volumeMounts": [
            {"name": MANIFEST_VOLUME, "mountPath": MANIFEST_FOLDER, "readOnly": True},
            {"name": "code", "mountPath": CODE_FOLDER, "readOnly": True},
            {"name": "hub", "mountPath": HUB_FOLDER},
            # NCCL and Ray's object store need more than the 64 MiB of the default /dev/shm.
            {"name": "shared-mem", "mountPath": "/dev/shm"},
            *SCRATCH_MOUNTS,
            _run_mount(job),
            *(as_written(mount) for mount in template.volume_mounts),
        ],
    }


def _probe(path: str, port: int, failures: int) -> Mapping[str, Any]:
    # KubeRay's own probes begin late. Ray answers these paths without a token.
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": 2,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _image(job: RLHFJob) -> ImageSpec:
    assert job.spec.image is not None, "jobs without an image are not accepted"
    return job.spec.image


def _environment(job: RLHFJob) -> list[Mapping[str, Any]]:
    fixed = {
        "HOME": HOME_FOLDER,
        # The cache of the hub survives the pod if a claim is mounted there.
        "HF_HOME": HUB_FOLDER,
        "PYTHONUNBUFFERED": "1",
        **START_LIMITS,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DRAIN_SECONDS),
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    env: list[Mapping[str, Any]] = [{"name": name, "value": value} for name, value in fixed.items()]
    env += [_from_secret(name, secret) for name, secret in secret_variables(job).items()]
    return _last_by_name([*env, *variables(job.spec.env)])


def _last_by_name(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    # The last value wins, at the position of the first one.
    return list({entry["name"]: entry for entry in entries}.values())


def _from_secret(name: str, secret: str) -> Mapping[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}


def _volumes(job: RLHFJob, template: PodTemplate, manifest: str) -> Sequence[Mapping[str, Any]]:
    # Every volume exists in every job, with or without a claim, so that mounts are always the same.
    hub = job.spec.hub.cache_claim_name if job.spec.hub else None
    storage = job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage else None
    size = template.shared_memory
    memory = {"medium": "Memory"} | ({} if size is None else {"sizeLimit": size})
    return [
        {"name": MANIFEST_VOLUME, "configMap": {"name": manifest}},
        code_volume(job),
        _claim_volume("hub", hub),
        {"name": "shared-mem", "emptyDir": memory},
        {"name": "scratch", "emptyDir": {}},
        _claim_volume("run", claim.claim_name if claim else None),
        *(as_written(volume) for volume in template.volumes),
    ]


def _claim_volume(name: str, claim: str | None) -> Mapping[str, Any]:
    if claim is None:
        return {"name": name, "emptyDir": {}}
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def _run_folder(
    job: RLHFJob, resources: PodResources, template: PodTemplate
) -> Sequence[Mapping[str, Any]]:
    """Return the init container that creates the job's folder on the volume."""
    # The kubelet would create a missing subPath as root.
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
            "securityContext": isolation(template),
            "resources": init_container_resources(resources, "50m", "32Mi", "128Mi"),
            "volumeMounts": [{"name": "run", "mountPath": "/claim"}],
        }
    ]


def _run_mount(job: RLHFJob) -> Mapping[str, Any]:
    """Mount the job's folder of the volume, or without a claim an empty folder of the pod."""
    storage = job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage else None
    mount = {"name": "run", "mountPath": RUN_FOLDER}
    return mount if claim is None else {**mount, "subPath": claim.sub_path or job.name}
