"""The pod that reads a job's volume when its cluster is gone. Pure.

It meets the restricted profile, mounts the job's folder for reading only, has no credentials, and
ends by itself: whoever made it deletes it, and a deadline is there for the case that nobody does.
"""

from __future__ import annotations

from typing import Any, Final

from rlhf_api.on_cluster import GPUS_VARIABLE, NO_GPUS, RUN_FOLDER
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.job import API_VERSION, GROUP, KIND
from rlhf_api.spec.resources import Toleration
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.place import ClaimFolder

CONTAINER: Final = "reader"
READER_LABEL: Final = f"{GROUP}/reader"
"""On reader pods, with the job's name. Not the job's own label: the operator did not make them."""
USER: Final = 1000
"""The uid and gid that job pods write as."""
LONGEST_SECONDS: Final = 6 * 3600
"""A reader pod ends after that, whatever became of the command that made it."""


def reader_pod(
    job: Job,
    place: ClaimFolder,
    image: ImageSpec,
    suffix: str,
    tolerations: tuple[Toleration, ...] = (),
    deadline_seconds: int = LONGEST_SECONDS,
) -> dict[str, Any]:
    """The manifest of a reader pod.

    Args:
        job: whose folder is read; the pod is its child, and is deleted with it.
        place: the folder.
        image: what the pod runs; it needs sh, sleep, find, stat, head and tail.
        suffix: makes the pod's name a new one.
        tolerations: taints of nodes from which the volume can be reached.
        deadline_seconds: the latest end of the pod.
    """
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-reader-{suffix}",
            "namespace": job.namespace,
            "labels": {READER_LABEL: job.name, "app.kubernetes.io/managed-by": "rlhf"},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_seconds,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [{"name": each.name} for each in image.pull_secrets],
            "tolerations": [
                each.model_dump(mode="json", by_alias=True, exclude_none=True)
                for each in tolerations
            ],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [
                {
                    "name": "run",
                    "persistentVolumeClaim": {"claimName": place.claim, "readOnly": True},
                }
            ],
            "containers": [_container(place, image, deadline_seconds)],
        },
    }


def _container(place: ClaimFolder, image: ImageSpec, deadline_seconds: int) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": "run", "mountPath": RUN_FOLDER, "readOnly": True}
    if place.folder:
        mount["subPath"] = place.folder
    return {
        "name": CONTAINER,
        "image": image.runtime,
        "imagePullPolicy": image.pull_policy,
        "command": ["sleep", str(deadline_seconds)],
        "env": [{"name": GPUS_VARIABLE, "value": NO_GPUS}],
        "volumeMounts": [mount],
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
