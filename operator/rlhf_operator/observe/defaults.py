"""The chart's jobDefaults, for fields that a manifest leaves out."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.pod.merge import merge_pods
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.resources import PodResources, ResourcesSpec
from rlhf_api.status import DefaultsStatus
from rlhf_operator.config import DefaultValues


def select_defaults(
    job: RLHFJob, pinned: DefaultsStatus | None, chart: DefaultValues
) -> DefaultsStatus:
    """Return the chart's defaults that the manifest does not set itself.

    Args:
        job: as written by the user.
        pinned: defaults in force since the job's acceptance; a later chart does not change them.
    """
    # Without pinning, an upgrade of the chart would replace the clusters of running jobs.
    kept, spec = pinned or DefaultsStatus(), job.spec
    resources = spec.resources
    pools = kept.node_pools or (() if resources.node_pools else chart.node_pools)
    workers = [
        _written(pool.resources, resources.merged_pod(pool))
        for pool in resources.node_pools or pools
    ]
    head = _written(resources.head, resources.merged_head_pod)
    pods = kept if pinned else chart
    return DefaultsStatus(
        image=kept.image or (None if spec.image else chart.image),
        node_pools=pools,
        storage=kept.storage or (None if spec.checkpoint.storage else chart.storage),
        head=pinned.head if pinned else _unset_resources([head], chart.head),
        worker=pinned.worker if pinned else _unset_resources(workers, chart.worker),
        pod=_unless_empty(pods.pod),
        head_pod=_unless_empty(pods.head_pod),
        worker_pod=_unless_empty(pods.worker_pod),
    )


def apply_defaults(job: RLHFJob, defaults: DefaultsStatus) -> RLHFJob:
    """Return the job with the defaults in fields that it leaves out."""
    spec = job.spec
    changed = spec.model_copy(
        update={
            "image": spec.image or defaults.image,
            "resources": _with_resources(spec.resources, defaults),
            "checkpoint": spec.checkpoint.model_copy(
                update={"storage": spec.checkpoint.storage or defaults.storage}
            ),
        }
    )
    return job.model_copy(update={"spec": changed})


def _with_resources(own: ResourcesSpec, defaults: DefaultsStatus) -> ResourcesSpec:
    # What a job says of all pods wins over what the chart says of some, so the templates of head
    # and pools become complete ones.
    shared = defaults.pod or PodTemplate()
    head_pod = merge_pods(shared, defaults.head_pod or PodTemplate(), own.pod, own.head_pod)
    pools = []
    for pool in own.node_pools or defaults.node_pools:
        pod = merge_pods(shared, defaults.worker_pod or PodTemplate(), own.pod, pool.pod)
        resources = _merge(pool.resources, defaults.worker, pod)
        pools.append(pool.model_copy(update={"resources": resources, "pod": pod}))
    head = _merge(own.head, defaults.head, head_pod)
    update = {
        "head": head,
        "node_pools": tuple(pools),
        "pod": PodTemplate(),
        "head_pod": head_pod,
    }
    return own.model_copy(update=update)


def _merge(own: PodResources, default: PodResources, pod: PodTemplate) -> PodResources:
    written = _written(own, pod)
    unset = {name: value for name, value in default if getattr(written, name) is None}
    return own.model_copy(update=unset)


def _written(own: PodResources, pod: PodTemplate) -> PodResources:
    """Return the amounts that a job sets, whichever fields it sets them by."""
    requests, limits = pod.resources.requests, pod.resources.limits
    return PodResources.model_construct(
        cpu=own.cpu or requests.get("cpu") or limits.get("cpu"),
        cpu_limit=own.cpu_limit or limits.get("cpu"),
        memory=own.memory or requests.get("memory") or limits.get("memory"),
        ephemeral_storage=own.ephemeral_storage
        or requests.get("ephemeral-storage")
        or limits.get("ephemeral-storage"),
    )


def _unless_empty(pod: PodTemplate | None) -> PodTemplate | None:
    return None if pod == PodTemplate() else pod


def _unset_resources(own: list[PodResources], default: PodResources) -> PodResources:
    """Return the fields of a default that at least one of these pods does not set."""
    unset = {
        name: getattr(default, name)
        for name in PodResources.model_fields
        if any(getattr(pod, name) is None for pod in own)
    }
    return PodResources(**unset)
