"""A job with what the chart's jobDefaults add where it says nothing."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import PodResources, ResourcesSpec
from rlhf_api.status import DefaultsStatus
from rlhf_operator.config import JobDefaults


def taken_defaults(
    job: RLHFJob, pinned: DefaultsStatus | None, chart: JobDefaults
) -> DefaultsStatus:
    """What a job takes of the chart's defaults, where its manifest says nothing.

    Args:
        job: as it was written.
        pinned: what it took when it was accepted: that stays, whatever the chart says now.
    """
    kept, spec = pinned or DefaultsStatus(), job.spec
    pools = kept.node_pools or (() if spec.resources.node_pools else chart.node_pools)
    lacking = [pool.resources for pool in spec.resources.node_pools or pools]
    return DefaultsStatus(
        image=kept.image or (None if spec.image else chart.image),
        node_pools=pools,
        storage=kept.storage or (None if spec.checkpoint.storage else chart.storage),
        head=pinned.head if pinned else _lacking([spec.resources.head], chart.head),
        worker=pinned.worker if pinned else _lacking(lacking, chart.worker),
    )


def with_defaults(job: RLHFJob, defaults: DefaultsStatus) -> RLHFJob:
    """The job as it is run; what it says itself stays."""
    spec = job.spec
    changed = spec.model_copy(
        update={
            "image": spec.image or defaults.image,
            "resources": _resources(spec.resources, defaults),
            "checkpoint": spec.checkpoint.model_copy(
                update={"storage": spec.checkpoint.storage or defaults.storage}
            ),
        }
    )
    return job.model_copy(update={"spec": changed})


def _resources(own: ResourcesSpec, defaults: DefaultsStatus) -> ResourcesSpec:
    return ResourcesSpec(
        head=_over(own.head, defaults.head),
        node_pools=tuple(
            pool.model_copy(update={"resources": _over(pool.resources, defaults.worker)})
            for pool in own.node_pools or defaults.node_pools
        ),
    )


def _over(own: PodResources, default: PodResources) -> PodResources:
    return PodResources(cpu=own.cpu or default.cpu, memory=own.memory or default.memory)


def _lacking(own: list[PodResources], default: PodResources) -> PodResources:
    """What of a default is used where some of these have none of their own."""
    return PodResources(
        cpu=default.cpu if any(each.cpu is None for each in own) else None,
        memory=default.memory if any(each.memory is None for each in own) else None,
    )
