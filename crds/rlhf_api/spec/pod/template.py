"""The part of a Kubernetes pod that a job may set, for the head and every node pool alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.api_names import GROUP
from rlhf_api.base import Annotations, Contract, Labels, ObjectName
from rlhf_api.on_cluster import GRACE_SECONDS, OWN_CONTAINERS
from rlhf_api.problems import FieldPath
from rlhf_api.quantity import Quantity
from rlhf_api.rules import Rule, Violation
from rlhf_api.spec.pod.containers import ExtraContainer, ExtraContainers, VariablesSources
from rlhf_api.spec.pod.open_schema import UNTYPED_IN_DEFINITION
from rlhf_api.spec.pod.resources import ContainerResources
from rlhf_api.spec.pod.scheduling import Affinity, Tolerations, TopologySpread
from rlhf_api.spec.pod.security import PodSecurity
from rlhf_api.spec.pod.volumes import (
    UNIQUE_MOUNTS,
    VolumeMounts,
    Volumes,
    covered_folders,
    own_volume_names,
    repeated,
)

# Domains of labels and annotations that the operator and KubeRay read.
_OWN_DOMAINS = (GROUP, "ray.io")
_OWN_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("name", "created-by", "managed-by"))

_PROBES = "the operator probes Ray, and no pod would start or live with another probe"
_NETWORK = "pods have a network of their own, in which Ray's ports are fixed"
_NAMES = "KubeRay names pods after the job, and Ray's processes find each other by these names"

# Kubernetes' fields that the operator sets, with the reason.
RESERVED = {
    "command": "the operator starts Ray by a command of its own",
    "args": "the operator starts Ray by a command of its own",
    "containers": "Ray's container is the operator's; write sidecars for others",
    "image": "all pods have one image, spec.image.runtime",
    "imagePullPolicy": "it is spec.image.pullPolicy",
    "imagePullSecrets": "they are spec.image.pullSecrets",
    "env": "variables are spec.env, and env of a node pool",
    "ports": "the operator and Ray need fixed ports",
    "livenessProbe": _PROBES,
    "readinessProbe": _PROBES,
    "startupProbe": _PROBES,
    "lifecycle": "the operator's hooks save a job whose pod ends",
    "name": _NAMES,
    "metadata": "labels and annotations stand here without it",
    "spec": "fields of a pod's spec stand here without it",
    "hostname": _NAMES,
    "subdomain": _NAMES,
    "nodeName": "the scheduler chooses nodes; write nodeSelector",
    "restartPolicy": "KubeRay replaces pods that end",
    "hostNetwork": _NETWORK,
    "hostPID": "the restricted profile does not allow it",
    "hostIPC": "the restricted profile does not allow it",
    "shareProcessNamespace": "Ray ends the processes of its own container",
    "enableServiceLinks": "variables of Services would change Ray's settings",
    "activeDeadlineSeconds": "deadlines belong to the job: spec.activeDeadlineSeconds",
}


def _own_names(pod: PodTemplate) -> Iterator[Violation]:
    for section in ("labels", "annotations"):
        for key in getattr(pod, section):
            domain, slash, _ = key.rpartition("/")
            is_own = any(domain == own or domain.endswith(f".{own}") for own in _OWN_DOMAINS)
            if (slash and is_own) or (section == "labels" and key in _OWN_LABELS):
                yield Violation(key, (section, key))


def _own_volumes(pod: PodTemplate) -> Iterator[Violation]:
    return own_volume_names(pod.volumes)


def _covered_folders(pod: PodTemplate) -> Iterator[Violation]:
    return covered_folders(pod.volume_mounts)


def _repeated_names(pod: PodTemplate) -> Iterator[Violation]:
    for index, name in repeated([volume.name for volume in pod.volumes]):
        yield Violation(name, ("volumes", index, "name"))
    # Kubernetes gives sidecars and init containers one list.
    containers = [*pod.extra_containers()]
    for index, name in repeated([container.name for _, container in containers]):
        path, _ = containers[index]
        yield Violation(name, (*path, "name"))


def _own_containers(pod: PodTemplate) -> Iterator[Violation]:
    for path, container in pod.extra_containers():
        if container.name in OWN_CONTAINERS:
            yield Violation(container.name, (*path, "name"))


class PodTemplate(Contract):
    """Fields of a Kubernetes pod, under its names. Fields of the pod and of Ray's container stand
    beside each other. Kubernetes' documentation of Pod explains them."""

    model_config = UNTYPED_IN_DEFINITION
    reserved: ClassVar = RESERVED

    labels: Labels = {}
    """Labels."""
    annotations: Annotations = {}
    """Annotations, such as those of Kueue's topologies."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    affinity: Affinity | None = None
    """Nodes and pods that they need, prefer or avoid."""
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Field(max_length=16)] = ()
    """Constraints on how evenly they spread over places."""
    tolerations: Tolerations = ()
    """Taints that they tolerate."""
    resources: ContainerResources = ContainerResources()
    """Requests and limits of Ray's container, besides the devices of the pool."""
    shared_memory: Quantity | None = None
    """Largest size of /dev/shm, which counts as memory of the pod, such as 64Gi. Default: half of
    the node's memory."""
    volumes: Volumes = ()
    """Volumes."""
    volume_mounts: VolumeMounts = ()
    """Volumes that Ray's container mounts, with their paths."""
    env_from: VariablesSources = ()
    """Objects whose keys are variables of Ray's container. Variables of other fields win."""
    security_context: PodSecurity = PodSecurity()
    """Users of processes and files, within the restricted profile."""
    scheduler_name: ObjectName | None = None
    """Scheduler. Default: the cluster's."""
    priority_class_name: ObjectName | None = None
    """Priority class. Default: spec.priorityClassName."""
    runtime_class_name: ObjectName | None = None
    """Runtime class, such as nvidia."""
    service_account_name: ObjectName | None = None
    """Service account, where the chart allows it. Default: the namespace's."""
    automount_service_account_token: bool | None = None
    """If true, containers get a token of serviceAccountName, which must be set then. Default:
    false."""
    init_containers: ExtraContainers = ()
    """Containers that run before Ray's, one after the other, where the chart allows them. The
    job's folder and code are there by then."""
    sidecars: ExtraContainers = ()
    """Containers that run beside Ray's, where the chart allows them. They start before all others
    and end after them."""
    termination_grace_period_seconds: Annotated[int, Field(ge=GRACE_SECONDS, le=86400)] | None = (
        None
    )
    """Time to end after SIGTERM. Default: 150 for the head, whose driver saves, and 30."""

    validations: ClassVar = (
        Rule(
            holds="",
            what="a label or annotation that the operator and KubeRay read",
            do="rename it, or remove it",
            check=_own_names,
        ),
        Rule(
            holds="",
            what="the name of a volume that the operator defines itself",
            do="choose another name",
            check=_own_volumes,
        ),
        Rule(
            holds="",
            what="a path that the job's own files or the system need",
            allowed="other paths, such as /data",
            do="mount it elsewhere",
            check=_covered_folders,
        ),
        Rule(
            holds="",
            what="a name that is used twice in the pod",
            do="rename one",
            check=_repeated_names,
        ),
        Rule(
            holds="",
            what="the name of a container that the operator or KubeRay defines itself",
            do="choose another name",
            check=_own_containers,
        ),
        UNIQUE_MOUNTS,
    )

    def extra_containers(self) -> Iterator[tuple[FieldPath, ExtraContainer]]:
        """Yield the init containers and the sidecars, with their paths in the template."""
        for section, containers in (
            ("initContainers", self.init_containers),
            ("sidecars", self.sidecars),
        ):
            for index, container in enumerate(containers):
                yield (section, index), container
