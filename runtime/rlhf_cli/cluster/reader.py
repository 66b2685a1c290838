"""The pod that reads a job's volume after its cluster is deleted: its manifest and its life.

The pod meets the restricted profile, mounts the job's folder read-only and has no credentials. The
command that creates it deletes it. A deadline ends it where that command was killed.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from rlhf_api.api_names import API_VERSION, GROUP, KIND
from rlhf_api.on_cluster import GPUS_VARIABLE, NO_GPUS, RUN_FOLDER
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.pod.scheduling import Toleration
from rlhf_cli.cluster.errors import ReaderFailed
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.location import ClaimFolder
from rlhf_cli.cluster.pods import is_running, is_stuck, pod_problems
from rlhf_cli.cluster.run_files import PodFiles
from rlhf_kube.errors import KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest

CONTAINER: Final = "reader"
# Not the job's own label: the operator would count the pod as one of the job's.
READER_LABEL: Final = f"{GROUP}/reader"
"""Label of reader pods; its value is the job's name."""
USER: Final = 1000
"""The uid and gid as which job pods write."""
MAX_SECONDS: Final = 6 * 3600
"""Deadline of a reader pod, for the case that nobody deletes it."""
START_SECONDS = 300.0
"""Default start timeout; the image may have to be pulled."""
STUCK_SECONDS = 20.0
"""Timeout for problems that seldom resolve; the kubelet retries a pull within it."""
POLL_SECONDS = 0.5
Notify = Callable[[str], None]


def new_suffix() -> str:
    """Random suffix of a pod's name."""
    return secrets.token_hex(3)


@contextmanager
def running_reader(
    cluster: Cluster, pod: Manifest, notify: Notify, start_seconds: float = START_SECONDS
) -> Iterator[PodFiles]:
    """Run a reader pod for the duration of the block and yield its files.

    The pod is deleted at the end, also on Ctrl-C and SIGTERM, and also if its creation failed or
    is uncertain.

    Args:
        pod: its manifest (`reader_pod`).
        notify: prints a line for the user.
        start_seconds: start timeout.

    Raises:
        ReaderFailed: the pod did not start; the message gives the reason.
        NotAdmitted: a policy or quota rejects the pod.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    with _interrupt_on_sigterm():
        try:
            notify(f"reading the volume through pod {name} in {namespace}")
            if not cluster.create(pod):
                raise ReaderFailed(f"pod {name} exists already in {namespace}; try again")
            _wait(cluster, namespace, name, start_seconds, notify)
            yield PodFiles(cluster, namespace, name, CONTAINER, RUN_FOLDER)
        finally:
            # Also after an error of `create`: the pod may exist although its answer was lost.
            _delete(cluster, namespace, name, notify)


def _wait(
    cluster: Cluster, namespace: str, name: str, start_seconds: float, notify: Notify
) -> None:
    """Wait until the pod runs; report each problem once."""
    begin, stuck_since, reported = time.monotonic(), None, set[str]()
    while True:
        pod, now = cluster.get(Kind.POD, namespace, name), time.monotonic()
        if pod is None:
            raise ReaderFailed(
                f"the pod that reads the job's volume was deleted: got no pod {name} in "
                f"{namespace}; try again"
            )
        if is_running(pod):
            return
        for problem in pod_problems(pod):
            if problem not in reported:
                notify(f"it has not started yet: {problem}")
                reported.add(problem)
        # A first failed pull may be a hiccup of the registry, so a stuck pod gets some time.
        stuck_since = (stuck_since or now) if is_stuck(pod) else None
        is_stuck_too_long = stuck_since is not None and now - stuck_since > STUCK_SECONDS
        if is_stuck_too_long or now - begin > start_seconds:
            phase = (pod.get("status") or {}).get("phase", "Pending")
            problems = "; ".join(pod_problems(pod)) or f"it is {phase}"
            raise ReaderFailed(
                f"the pod that reads the job's volume did not start within {now - begin:.0f} s: "
                f"got {problems}; resolve that, or give another --image or --claim"
            )
        time.sleep(POLL_SECONDS)


def _delete(cluster: Cluster, namespace: str, name: str, notify: Notify) -> None:
    """Delete the pod; a failure is reported but not raised."""
    try:
        cluster.delete(Kind.POD, namespace, name, grace_seconds=0)
    except KubeError as error:
        notify(
            f"pod {name} could not be deleted ({error.reason}): "
            f"kubectl delete pod -n {namespace} -l {READER_LABEL}"
        )


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that the pod is deleted."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Python's default for SIGTERM ends the process without `finally` blocks.
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def reader_pod(
    job: Job,
    location: ClaimFolder,
    image: ImageSpec,
    suffix: str,
    tolerations: tuple[Toleration, ...] = (),
    deadline_seconds: int = MAX_SECONDS,
) -> dict[str, Any]:
    """Build the manifest of a reader pod.

    Args:
        job: the job whose folder is read. It owns the pod, so the pod is deleted with it.
        location: the folder.
        image: the pod's image; it needs sh, sleep, find, stat, head and tail.
        suffix: makes the pod's name unique.
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
            # It reads files and nothing else, so it gets no credentials.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # The image and its secrets are the job's, which the cluster's nodes can pull already.
            "imagePullSecrets": [{"name": secret.name} for secret in image.pull_secrets],
            "tolerations": [
                taint.model_dump(mode="json", by_alias=True, exclude_none=True)
                for taint in tolerations
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
                    "persistentVolumeClaim": {"claimName": location.claim, "readOnly": True},
                }
            ],
            "containers": [_container(location, image, deadline_seconds)],
        },
    }


def _container(location: ClaimFolder, image: ImageSpec, deadline_seconds: int) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": "run", "mountPath": RUN_FOLDER, "readOnly": True}
    if location.folder:
        mount["subPath"] = location.folder
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
