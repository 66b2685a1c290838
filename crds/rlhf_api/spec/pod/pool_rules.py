"""Rules of the pods of a job as they will be: the template of all pods with that of some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rlhf_api.problems import FieldPath, Problem
from rlhf_api.spec.pod.merge import merge_pods
from rlhf_api.spec.pod.resources import amount_conflicts
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.pod.volumes import VolumeMounts


class PodLayers(NamedTuple):
    """The templates of one kind of pods."""

    shared: PodTemplate
    """The template of all pods."""
    shared_path: FieldPath
    """Its path, from the object with the rule."""
    own: PodTemplate
    """The template of the head, or of a pool."""
    own_path: FieldPath
    """Its path."""
    amounts: tuple[str, ...] = ()
    """Resources that other fields set, such as cpu."""
    device: str | None = None
    """The resource of the pool's devices."""

    @property
    def merged(self) -> PodTemplate:
        """The template with all fields."""
        return merge_pods(self.shared, self.own)


# The resources of GPUs in general; a pool may name another.
GPU_RESOURCE = "nvidia.com/gpu"


def pod_problems(layers: PodLayers) -> Iterator[Problem]:
    """Yield the problems of the merged template, at the template that causes them."""
    pod = layers.merged
    yield from _missing_volumes(layers, pod)
    yield from _resource_problems(layers, pod)
    if pod.automount_service_account_token and pod.service_account_name is None:
        yield Problem(
            _path(layers, ("automountServiceAccountToken",)),
            "a token of an unnamed service account",
            do="name it in serviceAccountName, or remove this field",
        )


def _missing_volumes(layers: PodLayers, pod: PodTemplate) -> Iterator[Problem]:
    names = [volume.name for volume in pod.volumes]
    for template, path in ((layers.shared, layers.shared_path), (layers.own, layers.own_path)):
        lists: dict[FieldPath, VolumeMounts] = {(): template.volume_mounts}
        for section, container in template.extra_containers():
            lists[section] = container.volume_mounts
        for place, mounts in lists.items():
            for number, mount in enumerate(mounts):
                if mount.name not in names:
                    yield Problem(
                        (*path, *place, "volumeMounts", number, "name"),
                        "a mount of a volume that the pod does not have",
                        got=mount.name,
                        allowed=", ".join(names) or "none: it has no volumes",
                        do="correct the name, or add the volume to volumes",
                    )


def _resource_problems(layers: PodLayers, pod: PodTemplate) -> Iterator[Problem]:
    requests, limits = pod.resources.requests, pod.resources.limits
    for section, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            path = _path(layers, ("resources", section, name))
            if name in (layers.device, GPU_RESOURCE):
                yield Problem(
                    path,
                    "the devices of a pool, whose number is devicesPerNode",
                    got=name,
                    do="remove it; deviceResource of the pool names another resource",
                )
            elif name in layers.amounts:
                yield Problem(
                    path,
                    "an amount that the pool's or head's own resources set, too",
                    got=name,
                    do="remove one of them",
                )
    for place, amount, allowed in amount_conflicts(requests, limits):
        yield Problem(
            _path(layers, ("resources", *place)),
            "a request that does not fit its limit",
            got=amount,
            allowed=allowed,
            do="change one of them",
        )


def _path(layers: PodLayers, below: FieldPath) -> FieldPath:
    """Return the path of a field in the more specific template that has it."""
    node: object = layers.own.model_dump(by_alias=True, exclude_defaults=True)
    for segment in below:
        if not isinstance(node, dict) or segment not in node:
            return (*layers.shared_path, *below)
        node = node[segment]
    return (*layers.own_path, *below)
