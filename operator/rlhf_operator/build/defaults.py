"""A job with what the chart's jobDefaults add where it says nothing."""

from __future__ import annotations

from rlhf_api.job import RLHFJob, RLHFJobSpec
from rlhf_api.resources import PodResources, ResourcesSpec
from rlhf_operator.config import JobDefaults


def with_defaults(job: RLHFJob, defaults: JobDefaults) -> RLHFJob:
    """The job as it is run; what it says itself stays."""
    spec = job.spec
    changed = spec.model_copy(
        update={
            "image": spec.image or defaults.image,
            "resources": _resources(spec, defaults),
            "checkpoint": spec.checkpoint.model_copy(
                update={"storage": spec.checkpoint.storage or defaults.storage}
            ),
        }
    )
    return job.model_copy(update={"spec": changed})


def _resources(spec: RLHFJobSpec, defaults: JobDefaults) -> ResourcesSpec:
    pools = spec.resources.node_pools or defaults.node_pools
    return ResourcesSpec(
        head=_over(spec.resources.head, defaults.head),
        node_pools=tuple(
            pool.model_copy(update={"resources": _over(pool.resources, defaults.worker)})
            for pool in pools
        ),
    )


def _over(own: PodResources, default: PodResources) -> PodResources:
    return PodResources(cpu=own.cpu or default.cpu, memory=own.memory or default.memory)
