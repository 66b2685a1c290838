"""Names, ports and paths of a job's cluster, shared by operator, driver, chart and command.

A job's cluster is one RayCluster. Its head pod runs the driver and serves its report. Its pods hold
no Kubernetes credentials unless job and chart say so; one bearer token authenticates them and the
operator.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from rlhf_api.api_names import GROUP

if TYPE_CHECKING:
    from rlhf_api.spec.resources import NodePool

# Label with the job's name, on every object that the operator creates for the job.
JOB_LABEL: Final = f"{GROUP}/job"
# Field manager of the operator's server-side apply.
FIELD_MANAGER: Final = "rlhf-operator"
# Annotation of RayClusters: digest of the operator key from which their token is derived.
KEY_ANNOTATION: Final = f"{GROUP}/operator-key"
# Annotation of RayClusters: namespace and name of the Lease of the release that created them.
RELEASE_ANNOTATION: Final = f"{GROUP}/operator-release"
# The oldest KubeRay that can take a cluster's token from a Secret.
KUBERAY: Final = "1.6"
# The value of spec.managedBy for this operator; an absent field means the same.
MANAGED_BY: Final = f"{GROUP}/operator"
# Label with Kueue's queue. It is copied to the RayCluster, which Kueue then suspends and resumes.
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
# Label of a job with the person or team that it is for, for tables only.
OWNER_LABEL: Final = "rlhf-operator.dev/owner"

GCS_PORT: Final = 6379
# Ray's Jobs API.
DASHBOARD_PORT: Final = 8265
# Ports of Ray's agents on every node. Without fixed ports a raylet waits until its agents report
# theirs, and ends after 15 s, which a busy node exceeds. Neither Ray nor Linux gives these ports to
# other processes.
AGENT_PORT: Final = 6380
AGENT_GRPC_PORT: Final = 6381
RUNTIME_ENV_AGENT_PORT: Final = 6382
# The driver's report: GET /report, POST /acknowledge, and GET /healthz without a token.
REPORT_PORT: Final = 8290

# Environment variable with the cluster's bearer token, for Ray and the report server.
TOKEN_VARIABLE: Final = "RAY_AUTH_TOKEN"
# Key of the token in the cluster's Secret, as KubeRay defines it.
TOKEN_KEY: Final = "auth_token"

# Environment variable with KubeRay's `ray start` command for a pod.
RAY_START_VARIABLE: Final = "KUBERAY_GEN_RAY_START_CMD"
# Time limit for Ray's processes of a node to start. Ray's own limits are 15 to 60 s, which a busy
# node exceeds.
RAY_START_SECONDS: Final = 300

# Environment variable of the head with the uid of its RLHFJob, which distinguishes the job from an
# earlier one of its name.
JOB_UID_VARIABLE: Final = "RLHF_JOB_UID"

# Environment variable with the name of a pod's fork server, which starts its workers.
FORK_SERVER_VARIABLE: Final = "RLHF_FORK_SERVER"
# Name of the fork server; unique because each pod has its own network namespace.
FORK_SERVER: Final = "rlhf-of-this-pod"

# GPUs that NVIDIA's runtime shows a container. The device plugin sets it for pods with GPUs.
GPUS_VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
# Value of GPUS_VARIABLE for pods without GPUs.
# Where NVIDIA's runtime is a node's default, a container without this could see every GPU.
NO_GPUS: Final = "void"

# JSON object with the fields of every log line. Where it is set, log lines are JSON objects.
LOG_FIELDS_VARIABLE: Final = "RLHF_LOG_FIELDS"

MANIFEST_FOLDER: Final = "/etc/rlhf/job"
# The manifest in force, with the chart's defaults.
MANIFEST: Final = f"{MANIFEST_FOLDER}/job.yaml"
# The user's Python files, from a ConfigMap or Git; on the Python path of driver and workers.
CODE_FOLDER: Final = "/etc/rlhf/code"
# The run's folder: the job's folder in the checkpoint volume, which every pod mounts.
RUN_FOLDER: Final = "/rlhf/run"
# Log of the job's drivers in the run's folder; readable after the head pod is deleted.
DRIVER_LOG: Final = "logs/driver.log"
# Exists in a head pod that is being ended: then the driver's last report is not waited for.
POD_ENDING_FILE: Final = "/tmp/rlhf-pod-ending"
# The download cache of the Hugging Face hub (HF_HOME).
HUB_FOLDER: Final = "/rlhf/hub"

# The home of the image's user, an empty folder of the pod.
HOME_FOLDER: Final = "/home/rlhf"
# Time for Ray to end after SIGTERM.
GRACE_SECONDS: Final = 30
# Volumes of a job's pods that the operator and KubeRay define themselves.
OWN_VOLUMES: Final = ("job", "code", "hub", "shared-mem", "scratch", "run", "ray-logs")
# Containers of a job's pods that the operator and KubeRay define themselves.
OWN_CONTAINERS: Final = (
    *("ray-head", "ray-worker", "run-folder", "fetch-code"),
    *("wait-gcs-ready", "autoscaler"),
)

# Prefix of the driver's last line of output; its final StatusReport in JSON follows.
FINAL_REPORT: Final = "rlhf-final-report "
# Host workers on the first node of the policy's pool: data and rewards. Each other node of the pool
# has one, for rewards.
NUM_HOSTS: Final = 2
# `num-cpus` of the head, so that Ray starts no worker there.
HEAD_CPUS: Final = 0


def cluster_name(job: str, attempt: int) -> str:
    """Name of the RayCluster of a job's attempt; unique among all jobs."""
    return f"{job}-{attempt}"


def is_cluster_name(name: str | None, job: str) -> bool:
    """True if it is the name of the RayCluster of an attempt of this job."""
    prefix, _, attempt = (name or "").rpartition("-")
    return prefix == job and attempt.isdecimal()


def submission_id(job: str, attempt: int, restart: int) -> str:
    """Id of one start of a driver in Ray's Jobs API."""
    return f"{job}-{attempt}-{restart}"


def job_from_submission(submission: str) -> str:
    """The job of a submission id.

    Raises:
        ValueError: not an id that `submission_id` makes.
    """
    parts = submission.rsplit("-", 2)
    if len(parts) != 3 or not all(part.isdecimal() for part in parts[1:]):
        raise ValueError(f"not a submission: got {submission!r}, allowed JOB-ATTEMPT-RESTART")
    return parts[0]


def ray_cpus(pool: NodePool) -> int:
    """`num-cpus` in the rayStartParams of a pool's pods: one for each rank and host, on any
    device."""
    # Every pod offers the hosts' share: the driver reserves complete nodes, and Ray chooses which
    # of them is the first.
    return pool.devices_per_node + NUM_HOSTS


def ray_gpus(pool: NodePool) -> int:
    """`num-gpus` in the rayStartParams of a pool's pods; 0 keeps Ray from looking for any."""
    from rlhf_api.spec.resources import Device  # late: `rlhf --help` needs this file without models

    return pool.devices_per_node if pool.device is Device.GPU else 0


def pool_resource(pool: str) -> str:
    """Ray's custom resource that every node of a pool has once; it identifies the pool."""
    return f"pool-{pool}"


def ray_resources(pool: NodePool) -> str:
    """`resources` in the rayStartParams of a pool's pods, quoted for the shell that reads them."""
    return json.dumps(json.dumps({pool_resource(pool.name): 1}))


def driver_command(submission: str) -> list[str]:
    """The command of a submission, run on the head."""
    return ["rlhf", "drive", MANIFEST, "--output", RUN_FOLDER, "--submission-id", submission]
