"""The chart's jobDefaults, for fields that a manifest leaves out."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import PodResources, ResourcesSpec
from rlhf_api.status import DefaultsStatus
from rlhf_operator.config import JobDefaults


def select_defaults(
    job: RLHFJob, pinned: DefaultsStatus | None, chart: JobDefaults
) -> DefaultsStatus:
    """Return the chart's defaults that the manifest does not set itself.

    Args:
        job: as written by the user.
        pinned: defaults in force since the job's acceptance; a later chart does not change them.
    """
    # Without pinning, an upgrade of the chart would replace the clusters of running jobs.
    kept, spec = pinned or DefaultsStatus(), job.spec
    pools = kept.node_pools or (() if spec.resources.node_pools else chart.node_pools)
    workers = [pool.resources for pool in spec.resources.node_pools or pools]
    return DefaultsStatus(
        image=kept.image or (None if spec.image else chart.image),
        node_pools=pools,
        storage=kept.storage or (None if spec.checkpoint.storage else chart.storage),
        head=pinned.head if pinned else _unset_resources([spec.resources.head], chart.head),
        worker=pinned.worker if pinned else _unset_resources(workers, chart.worker),
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
    pools = tuple(
        pool.model_copy(update={"resources": _merge(pool.resources, defaults.worker)})
        for pool in own.node_pools or defaults.node_pools
    )
    return own.model_copy(update={"head": _merge(own.head, defaults.head), "node_pools": pools})


def _merge(own: PodResources, default: PodResources) -> PodResources:
    fields = PodResources.model_fields
    return PodResources(**{name: getattr(own, name) or getattr(default, name) for name in fields})


def _unset_resources(own: list[PodResources], default: PodResources) -> PodResources:
    """Return the fields of a default that at least one of these pods does not set."""
    unset = {
        name: getattr(default, name)
        for name in PodResources.model_fields
        if any(getattr(pod, name) is None for pod in own)
    }
    return PodResources(**unset)
