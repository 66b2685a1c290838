"""Devices and pods of a job."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import (
    Contract,
    LabelKey,
    LabelMap,
    Name,
    Text,
)
from rlhf_api.quantity import Quantity, quantity_amount
from rlhf_api.rules import Rule, Violation, violation_if, violation_of
from rlhf_api.spec.environment import Environment
from rlhf_api.spec.hardware import HardwareSpec
from rlhf_api.spec.pod.merge import merge_pods
from rlhf_api.spec.pod.pool_rules import GPU_RESOURCE, PodLayers, pod_problems
from rlhf_api.spec.pod.scheduling import Tolerations
from rlhf_api.spec.pod.template import PodTemplate


class Device(StrEnum):
    """Kind of device of a rank."""

    GPU = "GPU"
    """A CUDA device."""
    CPU = "CPU"
    """A process on the host's cores."""


def _limit_covers_request(resources: PodResources) -> list[Violation]:
    cpu, limit = resources.cpu, resources.cpu_limit
    if cpu is None or limit is None:
        return []
    return violation_if(quantity_amount(limit) < quantity_amount(cpu), limit)


class PodResources(Contract):
    """CPU, memory and local disk of one pod."""

    cpu: Quantity | None = None
    """Requested CPU cores, such as 8 or 500m. Default: the chart's."""
    cpu_limit: Quantity | None = None
    """Largest number of CPU cores, where a quota of the namespace requires one. Default: the
    chart's, else none: the pod may use idle cores of its node."""
    memory: Quantity | None = None
    """Request and limit of memory, such as 64Gi. Default: the chart's."""
    ephemeral_storage: Quantity | None = None
    """Request and limit of the node's disk, for logs and temporary files, such as 20Gi. Default:
    the chart's, else none."""

    validations: ClassVar = (
        Rule(
            holds="",  # the API server cannot compare 500m with 1 at a bounded cost
            what="a limit of CPU cores below the request",
            got="self.cpuLimit",
            do="raise it, or request less",
            field=".cpuLimit",
            check=_limit_covers_request,
        ),
    )


# Lowest plausible memory bandwidth of a GPU in GB/s: a sixth of a T4's.
# Detects rates that were written in TB/s.
MIN_GPU_MEMORY_RATE = 50


def _gpu_memory_is_plausible(pool: NodePool) -> list[Violation]:
    rate = None if pool.hardware is None else pool.hardware.memory_gigabytes_per_second
    is_slow = pool.device is Device.GPU and rate is not None and rate < MIN_GPU_MEMORY_RATE
    return violation_if(is_slow, rate)


class NodePool(Contract):
    """Nodes of one kind for a job."""

    name: Name
    """Its name in plans and pods; unique in the job."""
    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of nodes."""
    device: Device = Device.GPU
    """Kind of device: GPU or CPU."""
    devices_per_node: Annotated[int, Field(ge=1, le=64)] = 8
    """Number of devices on a node: GPUs, or processes on CPUs."""
    gpu: Text | None = None
    """The GPU's model, such as A100-80G or H100, for planning. Default: unknown."""
    memory_per_device: Quantity | None = None
    """Memory of one device, such as 80G. Default: that of the GPU's model; on CPUs the node's
    share."""
    hardware: HardwareSpec | None = None
    """Performance of its devices and links, for planning. It is needed for GPUs that the planner
    does not support, and for deviations, such as another network between nodes. Default: that of
    the GPU's model."""
    node_selector: LabelMap = {}
    """Labels that a node must have."""
    tolerations: Tolerations = ()
    """Taints that its pods tolerate."""
    resources: PodResources = PodResources()
    """CPU and memory requests of one pod."""
    env: Environment = ()
    """Environment variables of its pods, in addition to spec.env. For names in both, these
    count."""
    annotations: LabelMap = {}
    """Annotations of its pods."""
    device_resource: LabelKey | None = None
    """Kubernetes' name of its GPUs, such as nvidia.com/mig-3g.40gb or amd.com/gpu. Default:
    nvidia.com/gpu."""
    pod: PodTemplate = PodTemplate()
    """Further fields of its pods, under Kubernetes' names. They win over resources.pod."""

    validations: ClassVar = (
        # KubeRay names the head's group so; node pools become worker groups beside it.
        Rule(
            holds="self.name != 'head'",
            what="the name of the cluster's own head group",
            got="self.name",
            do="choose another name",
            field=".name",
            check=lambda self: violation_if(self.name == "head", "head"),
        ),
        Rule(
            holds="self.device == 'GPU' || !has(self.gpu)",
            what="a GPU model in a pool of device CPU",
            got="self.gpu",
            do="remove it, or write device: GPU",
            field=".gpu",
            check=lambda self: violation_if(
                self.device is Device.CPU and self.gpu is not None, self.gpu
            ),
        ),
        Rule(
            holds="self.device == 'CPU' || !has(self.hardware) || "
            "!has(self.hardware.memoryGigabytesPerSecond) || "
            f"self.hardware.memoryGigabytesPerSecond >= {MIN_GPU_MEMORY_RATE}.0",
            what="a memory bandwidth below that of any GPU",
            allowed=f"at least {MIN_GPU_MEMORY_RATE} GB/s",
            do="write GB/s, 1000 for each TB/s",
            field=".hardware.memoryGigabytesPerSecond",
            check=_gpu_memory_is_plausible,
        ),
        Rule(
            holds="self.device == 'GPU' || !has(self.deviceResource)",
            what="the name of GPUs in a pool of device CPU",
            got="self.deviceResource",
            do="remove it, or write device: GPU",
            field=".deviceResource",
            check=lambda self: violation_if(
                self.device is Device.CPU and self.device_resource is not None,
                self.device_resource,
            ),
        ),
    )

    @property
    def num_devices(self) -> int:
        """Devices in the pool."""
        return self.nodes * self.devices_per_node

    @property
    def gpu_resource(self) -> str | None:
        """Kubernetes' name of its GPUs; None for a pool of CPUs."""
        return None if self.device is Device.CPU else self.device_resource or GPU_RESOURCE


# One pool for all roles, or several. With several, the placement assigns roles to pools, or the
# planner does if the GPUs of each pool are named.
NodePools = Annotated[tuple[NodePool, ...], Field(max_length=16)]


def _pods_fit_together(resources: ResourcesSpec) -> Iterator[Violation]:
    for layers in resources.pod_layers():
        for problem in pod_problems(layers):
            yield violation_of(problem)


class ResourcesSpec(Contract):
    """Devices and pods of a job. `rlhf run` uses the devices of the machine instead."""

    node_pools: NodePools = ()
    """Node pools: one, or one for each set of roles of the placement. Default: on a cluster the
    chart's jobDefaults; on one machine its devices."""
    head: PodResources = PodResources()
    """CPU, memory and local disk of the head pod, which has no device."""
    pod: PodTemplate = PodTemplate()
    """Fields of all pods, the head's and the workers', under Kubernetes' names."""
    head_pod: PodTemplate = PodTemplate()
    """Fields of the head pod. They win over pod."""
    evictable: bool = True
    """If false, drains and autoscalers leave the nodes of the job's pods alone as long as its
    cluster exists. A node that is lost, or a pod of higher priority, still ends them."""

    validations: ClassVar = (
        Rule(
            holds="",  # the definition has pods as objects of any content
            what="a field of a pod that does not fit the others",
            do="change one of them",
            check=_pods_fit_together,
        ),
    )

    def pod_layers(self) -> Iterator[PodLayers]:
        """Yield the templates of the head, and of the pods of each pool."""
        shared = (self.pod, ("pod",))
        yield PodLayers(*shared, self.head_pod, ("headPod",), _amounts(self.head))
        for index, pool in enumerate(self.node_pools):
            own = (pool.pod, ("nodePools", index, "pod"))
            yield PodLayers(*shared, *own, _amounts(pool.resources), pool.gpu_resource)

    @property
    def merged_head_pod(self) -> PodTemplate:
        """The template of the head pod."""
        return merge_pods(self.pod, self.head_pod)

    def merged_pod(self, pool: NodePool) -> PodTemplate:
        """The template of a pool's pods."""
        return merge_pods(self.pod, pool.pod)


def _amounts(resources: PodResources) -> tuple[str, ...]:
    """Names of the resources that a pod's own fields set."""
    amounts = {
        "cpu": resources.cpu or resources.cpu_limit,
        "memory": resources.memory,
        "ephemeral-storage": resources.ephemeral_storage,
    }
    return tuple(name for name, amount in amounts.items() if amount is not None)
