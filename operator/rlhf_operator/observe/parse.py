"""From Kubernetes' objects, as JSON, to what decisions are made from. Pure; nothing is trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rlhf_api.on_cluster import (
    FINALIZER,
    KEY_ANNOTATION,
    MANAGED_BY,
    RELEASE_ANNOTATION,
)
from rlhf_api.problems import Problem
from rlhf_api.reading.status import read_status
from rlhf_api.reading.validation import validate_document
from rlhf_operator.apply.build.pods import MANIFEST_VOLUME
from rlhf_operator.config import JobDefaults
from rlhf_operator.decide.observed import (
    ClaimSeen,
    ClusterSeen,
    JobSeen,
    PodProblem,
    PodSeen,
    Refusal,
)
from rlhf_operator.observe.defaults import taken_defaults, with_defaults

Raw = Mapping[str, Any]
SHOWN_PROBLEMS = 5
"""Problems of a manifest that a condition names."""
OF_IMAGES = {
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
}
OF_CONFIGURATION = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


def is_ours(raw: Raw) -> bool:
    """Whether this operator looks after the job."""
    return _map(raw.get("spec")).get("managedBy") in (None, MANAGED_BY)


def parse_job(raw: Raw, defaults: JobDefaults) -> JobSeen:
    """An RLHFJob."""
    metadata = raw["metadata"]
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
    written, problems = validate_document(document)
    status = read_status(raw.get("status"))
    taken = None if written is None else taken_defaults(written, status.defaults, defaults)
    job = None if written is None or taken is None else with_defaults(written, taken)
    return JobSeen(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        created=_time(metadata["creationTimestamp"]),
        is_deleting="deletionTimestamp" in metadata,
        has_finalizer=FINALIZER in metadata.get("finalizers", ()),
        job=job,
        defaults=taken,
        problem=_refusal(problems),
        status=status,
    )


def _refusal(problems: list[Problem]) -> Refusal | None:
    if not problems:
        return None
    words = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        words.append(f"and {len(problems) - SHOWN_PROBLEMS} more problems")
    return Refusal("InvalidManifest", "\n".join(words))


def parse_cluster(raw: Raw, job_uid: str, key_id: str) -> ClusterSeen:
    """A RayCluster.

    Args:
        job_uid: of the job that is looked at.
        key_id: of this operator's key.
    """
    metadata, spec = raw["metadata"], _map(raw.get("spec"))
    annotations = _map(metadata.get("annotations"))
    owners = _maps(metadata.get("ownerReferences"))
    return ClusterSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        is_ours=any(owner.get("controller") and owner.get("uid") == job_uid for owner in owners),
        has_other_key=annotations.get(KEY_ANNOTATION, key_id) != key_id,
        release=_text(annotations.get(RELEASE_ANNOTATION)),
        is_deleting="deletionTimestamp" in metadata,
        is_suspended=bool(spec.get("suspend")),
        manifest=_manifest_of(spec),
        wanted=_wanted(spec),
    )


def _wanted(cluster: Raw) -> Mapping[str, int]:
    wanted: Counter[str] = Counter()
    for group in _maps(cluster.get("workerGroupSpecs")):
        replicas = group.get("replicas", 1)
        wanted[str(group.get("groupName", ""))] += replicas if isinstance(replicas, int) else 0
    return wanted


def _manifest_of(cluster: Raw) -> str | None:
    template = _map(_map(cluster.get("headGroupSpec")).get("template"))
    for volume in _maps(_map(template.get("spec")).get("volumes")):
        if volume.get("name") == MANIFEST_VOLUME:
            return _text(_map(volume.get("configMap")).get("name"))
    return None


def pods_refused(raw: Raw) -> PodProblem | None:
    """Why KubeRay can make no pods for a RayCluster, as long as it cannot: a quota, a policy, a
    priority class that does not exist, a field that no pod may have."""
    for each in _maps(_map(raw.get("status")).get("conditions")):
        if each.get("type") == "ReplicaFailure" and each.get("status") == "True":
            reason = str(each.get("reason", ""))
            said = " ".join(str(each.get("message", "")).removeprefix(reason).split())
            if reason.startswith("FailedCreate"):
                return PodProblem("PodsRefused", f"Kubernetes does not take its pods: {said}")
    return None


def parse_pod(raw: Raw) -> PodSeen:
    """A pod that KubeRay made."""
    metadata, status = raw["metadata"], _map(raw.get("status"))
    labels, owners = _map(metadata.get("labels")), _maps(metadata.get("ownerReferences"))
    conditions = _maps(status.get("conditions"))
    owner = next((each for each in owners if each.get("controller")), {})
    is_of_cluster = owner.get("kind") == "RayCluster"
    is_head = labels.get("ray.io/node-type") == "head"
    ends = metadata.get("deletionTimestamp")
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        is_head=is_head,
        is_ready=any(
            each.get("type") == "Ready" and each.get("status") == "True" for each in conditions
        ),
        created=_time(metadata["creationTimestamp"]),
        owner=owner.get("uid") if is_of_cluster else None,
        owner_name=owner.get("name") if is_of_cluster else None,
        pool=None if is_head else _text(labels.get("ray.io/group")),
        deletion_time=None if ends is None else _time(ends),
        address=_text(status.get("podIP")),
        problem=pod_problem(raw),
        is_starting=_is_starting(status),
    )


def _is_starting(status: Raw) -> bool:
    kinds = ("initContainerStatuses", "containerStatuses")
    waiting = [
        _map(_map(each.get("state")).get("waiting")).get("reason")
        for kind in kinds
        for each in _maps(status.get(kind))
    ]
    return any(reason in ("ContainerCreating", "PodInitializing") for reason in waiting)


def pod_problem(raw: Raw) -> PodProblem | None:
    """Why a pod does not run, by what its kubelet and the scheduler say."""
    status = _map(raw.get("status"))
    if status.get("reason") == "Evicted":
        return PodProblem("Evicted", f"its node put it out: {status.get('message', '')}")
    for each in _maps(status.get("conditions")):
        if each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable":
            return PodProblem("Unschedulable", f"no node takes it: {each.get('message', '')}")
    return next(_container_problems(status), None)


def _container_problems(status: Raw) -> Iterator[PodProblem]:
    kinds = ("initContainerStatuses", "containerStatuses")
    for container in (each for kind in kinds for each in _maps(status.get(kind))):
        state, name = _map(container.get("state")), container.get("name")
        waiting, ended = _map(state.get("waiting")), _map(state.get("terminated"))
        reason, said = str(waiting.get("reason", "")), waiting.get("message", "")
        before = _map(_map(container.get("lastState")).get("terminated"))
        if "OOMKilled" in (ended.get("reason"), before.get("reason")) and not container.get(
            "ready"
        ):
            yield PodProblem(
                "OutOfMemory",
                f"container {name} took more memory than its limit and was ended: "
                "raise resources of its pool (or of the head)",
            )
        elif reason in OF_IMAGES:
            yield PodProblem("ImagePull", f"image {container.get('image')}: {reason}: {said}")
        elif reason in OF_CONFIGURATION:
            yield PodProblem("Configuration", f"container {name}: {said}")
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


def parse_claim(raw: Raw | None) -> ClaimSeen:
    """A volume claim, or that there is none."""
    modes = _map(_map(raw).get("spec")).get("accessModes") or ()
    return ClaimSeen(exists=raw is not None, is_shared="ReadWriteMany" in modes)


def _map(value: Any) -> Raw:
    """An object, or an empty one in the place of something else."""
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    """A text, or nothing in the place of something else."""
    return value if isinstance(value, str) and value else None


def _maps(value: Any) -> list[Raw]:
    """The objects of a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
