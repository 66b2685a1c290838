"""Parse Kubernetes objects from JSON into the input of decisions. Pure; no field is trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rlhf_api.api_names import KIND
from rlhf_api.on_cluster import (
    KEY_ANNOTATION,
    MANAGED_BY,
    QUEUE_LABEL,
    RELEASE_ANNOTATION,
)
from rlhf_api.problems import Problem
from rlhf_api.reading.status import read_status
from rlhf_api.reading.validation import validate_document
from rlhf_operator.apply.build.pods import MANIFEST_VOLUME
from rlhf_operator.config import DefaultValues, PodPolicy
from rlhf_operator.decide.api_errors import is_quota_used_up
from rlhf_operator.decide.observed import (
    ObservedClaim,
    ObservedCluster,
    ObservedJob,
    ObservedPod,
    PodProblem,
    Refusal,
)
from rlhf_operator.observe.defaults import apply_defaults, select_defaults
from rlhf_operator.observe.pod_policy import find_pods_not_allowed

Raw = Mapping[str, Any]
SHOWN_PROBLEMS = 5
"""Problems of a manifest that a condition names."""
IMAGE_REASONS = {
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
}
WRONG_IMAGE_REASONS = {"ErrImageNeverPull", "InvalidImageName"}
CONFIGURATION_REASONS = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
CONTAINER_STATUSES = ("initContainerStatuses", "containerStatuses")


def is_managed_here(job: Raw) -> bool:
    """True if spec.managedBy leaves the job to this operator."""
    return _map(job.get("spec")).get("managedBy") in (None, MANAGED_BY)


def parse_job(raw: Raw, defaults: DefaultValues, policy: PodPolicy | None = None) -> ObservedJob:
    """Parse an RLHFJob.

    Args:
        defaults: the chart's; only those pinned in the status apply to a job that has some.
    """
    metadata = raw["metadata"]
    # Without fields of the API server, such as uid, which the contract does not have.
    kept = {
        name: metadata[name]
        for name in ("name", "namespace", "labels", "annotations")
        if name in metadata
    }
    document = {
        "apiVersion": raw.get("apiVersion"),
        "kind": raw.get("kind"),
        "metadata": kept,
        "spec": raw.get("spec", {}),
    }
    manifest, problems = validate_document(document)
    status = read_status(raw.get("status"))
    selected = None if manifest is None else select_defaults(manifest, status.defaults, defaults)
    job = None if manifest is None or selected is None else apply_defaults(manifest, selected)
    return ObservedJob(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        created=_time(metadata["creationTimestamp"]),
        is_deleting="deletionTimestamp" in metadata,
        job=job,
        defaults=selected,
        problem=_refusal(problems) if manifest is None else find_pods_not_allowed(manifest, policy),
        status=status,
    )


def _refusal(problems: list[Problem]) -> Refusal | None:
    if not problems:
        return None
    lines = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(problems) - SHOWN_PROBLEMS} more problems")
    return Refusal("InvalidManifest", "\n".join(lines))


def parse_cluster(raw: Raw, job_name: str, job_uid: str, key_id: str) -> ObservedCluster:
    """Parse a RayCluster.

    Args:
        job_name: of the job being reconciled.
        job_uid: of the job being reconciled.
        key_id: of this operator's key.
    """
    metadata, spec = raw["metadata"], _map(raw.get("spec"))
    annotations = _map(metadata.get("annotations"))
    owners = _maps(metadata.get("ownerReferences"))
    owner: Raw = next((owner for owner in owners if owner.get("controller")), {})
    is_owned = owner.get("uid") == job_uid
    is_of_this_name = (owner.get("kind"), owner.get("name")) == (KIND, job_name)
    return ObservedCluster(
        name=metadata["name"],
        uid=metadata["uid"],
        is_owned=is_owned,
        is_of_earlier_job=is_of_this_name and not is_owned,
        has_other_key=annotations.get(KEY_ANNOTATION, key_id) != key_id,
        release=_text(annotations.get(RELEASE_ANNOTATION)),
        is_deleting="deletionTimestamp" in metadata,
        is_suspended=bool(spec.get("suspend")),
        is_queued=QUEUE_LABEL in _map(metadata.get("labels")),
        manifest=_manifest_name(spec),
        desired_workers=_desired_workers(spec),
    )


def _desired_workers(spec: Raw) -> Mapping[str, int]:
    desired: Counter[str] = Counter()
    for group in _maps(spec.get("workerGroupSpecs")):
        replicas = group.get("replicas", 1)
        desired[str(group.get("groupName", ""))] += replicas if isinstance(replicas, int) else 0
    return desired


def _manifest_name(spec: Raw) -> str | None:
    template = _map(_map(spec.get("headGroupSpec")).get("template"))
    for volume in _maps(_map(template.get("spec")).get("volumes")):
        if volume.get("name") == MANIFEST_VOLUME:
            return _text(_map(volume.get("configMap")).get("name"))
    return None


def find_pods_refusal(cluster: Raw) -> PodProblem | None:
    """Return why KubeRay currently cannot create pods for a RayCluster.

    Causes: a quota, a policy, a missing priority class, a field that no pod may have.
    """
    for condition in _maps(_map(cluster.get("status")).get("conditions")):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            reason = str(condition.get("reason", ""))
            detail = " ".join(str(condition.get("message", "")).removeprefix(reason).split())
            if reason.startswith("FailedCreate"):
                message = f"Kubernetes refuses its pods: {detail}{_quota_advice(detail)}"
                return PodProblem("PodsRefused", message, not is_quota_used_up(detail))
    return None


def _quota_advice(detail: str) -> str:
    """Return what to do about a quota that counts what some container does not state."""
    if "must specify" not in detail:
        return ""
    return (
        "; set it for all pods in resources.head and nodePools[].resources (cpu, cpuLimit, memory, "
        "ephemeralStorage), or give the namespace a LimitRange with defaults"
    )


def parse_pod(raw: Raw) -> ObservedPod:
    """Parse a pod that KubeRay created."""
    metadata, status = raw["metadata"], _map(raw.get("status"))
    labels, owners = _map(metadata.get("labels")), _maps(metadata.get("ownerReferences"))
    conditions = _maps(status.get("conditions"))
    # The owner decides, not the label, which anybody may write.
    owner = next((owner for owner in owners if owner.get("controller")), {})
    is_of_cluster = owner.get("kind") == "RayCluster"
    is_head = labels.get("ray.io/node-type") == "head"
    deletion = metadata.get("deletionTimestamp")
    return ObservedPod(
        name=metadata["name"],
        uid=metadata["uid"],
        is_head=is_head,
        is_ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in conditions
        ),
        created=_time(metadata["creationTimestamp"]),
        owner=owner.get("uid") if is_of_cluster else None,
        owner_name=owner.get("name") if is_of_cluster else None,
        is_bound=_text(_map(raw.get("spec")).get("nodeName")) is not None
        and status.get("phase") not in ("Succeeded", "Failed"),
        pool=None if is_head else _text(labels.get("ray.io/group")),
        deletion_time=None if deletion is None else _time(deletion),
        address=_text(status.get("podIP")),
        problem=find_pod_problem(raw),
        is_starting=_is_starting(status),
    )


def _is_starting(status: Raw) -> bool:
    waiting = [
        _map(_map(container.get("state")).get("waiting")).get("reason")
        for container in _containers(status)
    ]
    return any(reason in ("ContainerCreating", "PodInitializing") for reason in waiting)


def find_pod_problem(raw: Raw) -> PodProblem | None:
    """Return why a pod does not run, by the kubelet's and the scheduler's status."""
    status = _map(raw.get("status"))
    if status.get("reason") == "Evicted":
        return PodProblem("Evicted", f"its node has evicted it: {status.get('message', '')}")
    for condition in _maps(status.get("conditions")):
        # Set by drains, preemptions, taints, the garbage collection of pods, and kubelets.
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            cause = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            return PodProblem("Disrupted", f"Kubernetes ends it: {cause}")
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return PodProblem("Unschedulable", f"no node fits: {condition.get('message', '')}")
    return next(_container_problems(status), None)


def _container_problems(status: Raw) -> Iterator[PodProblem]:
    for container in _containers(status):
        state, name = _map(container.get("state")), container.get("name")
        waiting, ended = _map(state.get("waiting")), _map(state.get("terminated"))
        reason, detail = str(waiting.get("reason", "")), waiting.get("message", "")
        before = _map(_map(container.get("lastState")).get("terminated"))
        # Also after a restart of the container, as long as it is not ready again.
        if "OOMKilled" in (ended.get("reason"), before.get("reason")) and not container.get(
            "ready"
        ):
            yield PodProblem(
                "OutOfMemory",
                f"container {name} used more memory than its limit and was killed: "
                "raise the resources of its pool (or of the head)",
            )
        elif reason in IMAGE_REASONS:
            message = f"image {container.get('image')}: {reason}: {detail}"
            # Other reasons may be those of a registry that is away for a while.
            yield PodProblem("ImagePull", message, reason in WRONG_IMAGE_REASONS)
        elif reason in CONFIGURATION_REASONS:
            is_missing = reason == "CreateContainerConfigError"  # a Secret or a ConfigMap
            yield PodProblem("Configuration", f"container {name}: {detail}", is_missing)
        elif reason == "CrashLoopBackOff":
            code = before.get("exitCode")
            yield PodProblem(
                "CrashLoop", f"container {name} ends again and again, exit code {code}"
            )
        elif ended.get("exitCode"):
            yield PodProblem(
                "ContainerFailed",
                f"container {name} ended with exit code {ended['exitCode']}",
            )


def _containers(status: Raw) -> Iterator[Raw]:
    for kind in CONTAINER_STATUSES:
        yield from _maps(status.get(kind))


def parse_claim(raw: Raw | None) -> ObservedClaim:
    """Parse a PersistentVolumeClaim. None: it does not exist."""
    modes = _map(_map(raw).get("spec")).get("accessModes") or ()
    return ObservedClaim(exists=raw is not None, is_shared="ReadWriteMany" in modes)


# Users and other controllers write these objects: a value of another type than expected counts as
# absent, so that one odd object cannot stop the reconciling of a job.


def _map(value: Any) -> Raw:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    """Return the value if it is a nonempty string, else None."""
    return value if isinstance(value, str) and value else None


def _maps(value: Any) -> list[Raw]:
    """Return the objects in the value if it is a list, else nothing."""
    return (
        [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
