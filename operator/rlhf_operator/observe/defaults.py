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
    return ResourcesSpec(
        head=_merge(own.head, defaults.head),
        node_pools=tuple(
            pool.model_copy(update={"resources": _merge(pool.resources, defaults.worker)})
            for pool in own.node_pools or defaults.node_pools
        ),
    )


def _merge(own: PodResources, default: PodResources) -> PodResources:
    return PodResources(cpu=own.cpu or default.cpu, memory=own.memory or default.memory)


def _unset_resources(own: list[PodResources], default: PodResources) -> PodResources:
    """Return the fields of a default that at least one of these pods does not set."""
    return PodResources(
        cpu=default.cpu if any(pod.cpu is None for pod in own) else None,
        memory=default.memory if any(pod.memory is None for pod in own) else None,
    )
