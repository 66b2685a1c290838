"""What operator, driver, chart and command agree on about a job's cluster: names, ports, paths.

A job's cluster is one RayCluster. Its head pod runs the driver and serves its report; its pods hold
no Kubernetes credentials, and know each other, and the operator, by one bearer token.
"""

from __future__ import annotations

import json
from typing import Final

from rlhf_api.spec.job import GROUP
from rlhf_api.spec.resources import Device, NodePool

JOB_LABEL: Final = f"{GROUP}/job"
"""On everything that the operator makes for a job, with the job's name."""
FIELD_MANAGER: Final = "rlhf-operator"
"""Who writes, for server-side apply."""
FINALIZER: Final = f"{GROUP}/cluster"
"""On an RLHFJob while it may have a RayCluster, and never longer."""
KEY_ANNOTATION: Final = f"{GROUP}/operator-key"
"""On RayClusters: which of the operator's keys their tokens are made from, by a digest."""
RELEASE_ANNOTATION: Final = f"{GROUP}/operator-release"
"""On RayClusters: the namespace and the name of the Lease of the release that made them."""
KUBERAY: Final = "1.6"
"""The oldest KubeRay that gives clusters the token of a Secret."""
MANAGED_BY: Final = f"{GROUP}/operator"
"""The value of spec.managedBy that means this operator; so does none."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's queue: passed on to the RayCluster, which then is Kueue's to suspend."""

GCS_PORT: Final = 6379
DASHBOARD_PORT: Final = 8265
"""Ray's Jobs API."""
CLIENT_PORT: Final = 10001
REPORT_PORT: Final = 8290
"""The driver's report: GET /report, POST /acknowledge, and GET /healthz without a token."""

TOKEN_VARIABLE: Final = "RAY_AUTH_TOKEN"
"""The cluster's bearer token in its pods' environment, for Ray and the report server."""
TOKEN_KEY: Final = "auth_token"
"""Its key in the cluster's Secret; KubeRay's name."""

FORK_SERVER_VARIABLE: Final = "RLHF_FORK_SERVER"
"""The name of the process in a pod that its workers are forked from."""
FORK_SERVER: Final = "rlhf-of-this-pod"
"""That name: a pod has a network namespace, and so names, of its own."""

GPUS_VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
"""GPUs that NVIDIA's runtime shows a container; the device plugin sets it where any is asked."""
NO_GPUS: Final = "void"
"""Its value for all others: where NVIDIA's runtime is a node's default they might see every GPU."""

MANIFEST_FOLDER: Final = "/etc/rlhf/job"
MANIFEST: Final = f"{MANIFEST_FOLDER}/job.yaml"
"""The manifest in force, with the chart's defaults."""
CODE_FOLDER: Final = "/etc/rlhf/code"
"""The user's own Python, from a ConfigMap or from Git; in the driver's and the workers' path."""
RUN_FOLDER: Final = "/rlhf/run"
"""The run's folder: the job's folder in the checkpoint volume, which every pod mounts."""
DRIVER_LOG: Final = "logs/driver.log"
"""In the run's folder: what the drivers of a job wrote, for when the head is gone."""
HUB_FOLDER: Final = "/rlhf/hub"
"""The download cache of the Hugging Face hub (HF_HOME)."""

FINAL_REPORT: Final = "rlhf-final-report "
"""The driver's last line of output begins so; its final StatusReport in JSON follows."""
NUM_HOSTS: Final = 2
"""Workers of a job besides its ranks on the first node of the policy's pool: data and rewards. On
its other nodes is one, of rewards."""
HEAD_CPUS: Final = 0
"""`num-cpus` of the head: Ray puts no worker there. It has no GPUs either."""


def cluster_name(job: str, attempt: int) -> str:
    """The RayCluster of a job's attempt; two jobs never share one."""
    return f"{job}-{attempt}"


def submission_id(job: str, attempt: int, restart: int) -> str:
    """One start of a driver, in Ray's Jobs API."""
    return f"{job}-{attempt}-{restart}"


def job_from_submission(submission: str) -> str:
    """The job whose driver a submission is.

    Raises:
        ValueError: it is none that `submission_id` makes.
    """
    parts = submission.rsplit("-", 2)
    if len(parts) != 3 or not all(part.isdecimal() for part in parts[1:]):
        raise ValueError(f"not a submission: got {submission!r}, allowed JOB-ATTEMPT-RESTART")
    return parts[0]


def ray_cpus(pool: NodePool) -> int:
    """`num-cpus` in the rayStartParams of a pool's pods: what Ray hands out, not what they have.

    One for each rank and each host, for any device. Every pod has to offer the hosts' share: the
    driver reserves a whole node at a time, and Ray chooses which one is the first.
    """
    return pool.devices_per_node + NUM_HOSTS


def ray_gpus(pool: NodePool) -> int:
    """`num-gpus` in the rayStartParams of a pool's pods; 0 keeps Ray from looking for any."""
    return pool.devices_per_node if pool.device is Device.GPU else 0


def pool_resource(pool: str) -> str:
    """Ray's custom resource of which every node of a pool has one: by it Ray tells pools apart."""
    return f"pool-{pool}"


def ray_resources(pool: NodePool) -> str:
    """`resources` in the rayStartParams of a pool's pods, quoted for the shell that reads them."""
    return json.dumps(json.dumps({pool_resource(pool.name): 1}))


def driver_command(submission: str) -> list[str]:
    """What a submission runs on the head."""
    return ["rlhf", "drive", MANIFEST, "--output", RUN_FOLDER, "--submission-id", submission]
