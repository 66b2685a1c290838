"""Training pipelines and their operations: the forward and the backward pass of a micro-batch
through a stage. Pure.

Every micro-batch goes forward through all stages and then backward through them. Several pipelines
on the same devices are a job shop: a micro-batch is a job of two operations per stage, each on the
device of its stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, lcm

from rlhf_flow.errors import DoesNotDivide
from rlhf_sizing.schedules import Operation


@dataclass(frozen=True)
class Pipeline:
    """A model in stages, and the micro-batches of one optimizer step.

    Raises:
        ValueError: not every stage has one device, positive times and a size of activations, a
            device has two stages, or there is no micro-batch.
    """

    name: str
    devices: tuple[int, ...]
    """Device of each stage, counted from 0; the stage with the first layers comes first. A device
    has at most one stage of a pipeline."""
    forward_seconds: tuple[float, ...]
    """Per stage, for one micro-batch; includes sending the result to the next stage."""
    backward_seconds: tuple[float, ...]
    """Per stage, for one micro-batch; includes the recomputation of activations, if any."""
    activation_bytes: tuple[int, ...]
    """Per stage: bytes that one micro-batch keeps from the start of its forward pass to the end of
    its backward pass."""
    micro_batches: int
    """1 or more."""

    def __post_init__(self) -> None:
        sizes = {len(self.forward_seconds), len(self.backward_seconds), len(self.activation_bytes)}
        times = (*self.forward_seconds, *self.backward_seconds)
        is_valid = (
            sizes == {len(self.devices)} == {len(set(self.devices))}
            and self.devices
            and min(self.devices) >= 0
            and all(isfinite(time) and time > 0 for time in times)
            and min(self.activation_bytes) >= 0
            and self.micro_batches >= 1
        )
        if not is_valid:
            raise ValueError(
                f"stages of {self.name} are impossible: got {self}, allowed one device, positive "
                "times and a size of activations for each stage, no device twice, and a "
                "micro-batch; correct the estimate"
            )

    @property
    def num_stages(self) -> int:
        """Stages of the model."""
        return len(self.devices)


def uniform_pipeline(
    name: str,
    devices: Sequence[int],
    forward_seconds: float,
    backward_seconds: float,
    micro_batches: int,
    activation_bytes: int = 1,
) -> Pipeline:
    """Build a pipeline with identical stages."""
    size = len(devices)
    return Pipeline(
        name,
        tuple(devices),
        (forward_seconds,) * size,
        (backward_seconds,) * size,
        (activation_bytes,) * size,
        micro_batches,
    )


def opposite_pipelines(one: Pipeline, other: Pipeline) -> tuple[Pipeline, ...]:
    """Put two models on the same devices in opposite directions.

    The first stage of one model shares a device with the last stage of the other. For p and q
    stages, the result uses lcm(p, q) devices with lcm(p, q) / p and lcm(p, q) / q replicas, each
    with its own micro-batches.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: K1 and K2 pipelines of actor and critic
    are fused in blocks. Chimera (arXiv 2107.06925) has two directions for one model.

    Args:
        one: its own `devices` are ignored.
        other: likewise; must have as many real devices per stage as `one`.
    """
    # lcm is the smallest number of devices that replicas of both models fill completely.
    num_devices = lcm(one.num_stages, other.num_stages)
    return (*replicate(one, num_devices), *replicate(other, num_devices, is_reversed=True))


def replicate(
    pipeline: Pipeline, num_devices: int, is_reversed: bool = False
) -> tuple[Pipeline, ...]:
    """Fill a number of devices with replicas of a pipeline, side by side.

    Args:
        pipeline: its own `devices` are ignored.
        num_devices: to fill; a multiple of the stages.
        is_reversed: put the first stage of each replica on its last device.

    Raises:
        DoesNotDivide: the number of devices is not a multiple of the stages.
    """
    size = pipeline.num_stages
    if num_devices % size:
        raise DoesNotDivide(
            f"replicas of {pipeline.name} do not fill the devices: got {size} stages for "
            f"{num_devices} devices, allowed a number of stages that divides them; choose another "
            "number of stages"
        )
    replicas = []
    for number, first in enumerate(range(0, num_devices, size), start=1):
        devices = range(first, first + size)
        # A single replica keeps the plain name, such as "actor" instead of "actor#1".
        name = pipeline.name if size == num_devices else f"{pipeline.name}#{number}"
        order = tuple(reversed(devices)) if is_reversed else tuple(devices)
        replicas.append(replace(pipeline, name=name, devices=order))
    return tuple(replicas)


Orders = tuple[tuple[int, ...], ...]
"""For each device the numbers of its operations, in the order in which it runs them."""


@dataclass(frozen=True)
class Workload:
    """All operations of some pipelines, numbered from 0 on.

    They are numbered by pipeline, then by micro-batch, then in the order in which the micro-batch
    passes through them. Tuples "per operation" are indexed by this number.
    """

    pipelines: tuple[Pipeline, ...]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """All operations by number."""
        return tuple(
            Operation(number, stage, micro_batch, is_backward)
            for number, pipeline in enumerate(self.pipelines)
            for micro_batch in range(pipeline.micro_batches)
            for is_backward, stages in _directions(pipeline.num_stages)
            for stage in stages
        )

    @cached_property
    def first_numbers(self) -> tuple[int, ...]:
        """Number of the first operation of each pipeline."""
        firsts, number = [], 0
        for pipeline in self.pipelines:
            firsts.append(number)
            number += 2 * pipeline.num_stages * pipeline.micro_batches
        return tuple(firsts)

    def number(self, operation: Operation) -> int:
        """Return the number of an operation."""
        stages = self.pipelines[operation.pipeline].num_stages
        # Backward passes come after all forward passes, from the last stage to the first.
        step = 2 * stages - 1 - operation.stage if operation.is_backward else operation.stage
        return self.first_numbers[operation.pipeline] + operation.micro_batch * 2 * stages + step

    @cached_property
    def num_devices(self) -> int:
        """Highest device number plus one; includes devices in between that have no stage."""
        return 1 + max(device for pipeline in self.pipelines for device in pipeline.devices)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Device per operation."""
        return tuple(self.pipelines[op.pipeline].devices[op.stage] for op in self.operations)

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Duration per operation."""
        return tuple(
            (pipeline.backward_seconds if op.is_backward else pipeline.forward_seconds)[op.stage]
            for op in self.operations
            for pipeline in [self.pipelines[op.pipeline]]
        )

    @cached_property
    def activation_delta_bytes(self) -> tuple[int, ...]:
        """Change of the device's activations per operation: positive for a forward pass, negative
        for a backward pass."""
        return tuple(
            -size if op.is_backward else size
            for op in self.operations
            for size in [self.pipelines[op.pipeline].activation_bytes[op.stage]]
        )

    @cached_property
    def max_activation_bytes(self) -> int:
        """Largest sum of all activations of a device: an upper bound for every schedule."""
        total = [0] * self.num_devices
        for device, size in zip(self.devices, self.activation_delta_bytes, strict=True):
            total[device] += max(0, size)
        return max(total)

    @cached_property
    def predecessors(self) -> tuple[int, ...]:
        """Per operation: the operation of the same micro-batch that must end before it starts, or
        -1.

        A forward pass follows the forward pass through the previous stage. The backward pass
        through the last stage follows its forward pass. Any other backward pass follows the
        backward pass through the next stage.
        """
        # Operations of a micro-batch are numbered in exactly this order.
        firsts = {self.number(Operation(p, 0, k, False)) for p, k in self._micro_batches}
        return tuple(-1 if n in firsts else n - 1 for n in range(len(self.operations)))

    @cached_property
    def successors(self) -> tuple[int, ...]:
        """Per operation: the operation of the same micro-batch that waits for its end, or -1."""
        lasts = {self.number(Operation(p, 0, k, True)) for p, k in self._micro_batches}
        return tuple(-1 if n in lasts else n + 1 for n in range(len(self.operations)))

    @property
    def _micro_batches(self) -> list[tuple[int, int]]:
        return [
            (number, micro_batch)
            for number, pipeline in enumerate(self.pipelines)
            for micro_batch in range(pipeline.micro_batches)
        ]


def _directions(num_stages: int) -> tuple[tuple[bool, range], tuple[bool, range]]:
    return (False, range(num_stages)), (True, range(num_stages - 1, -1, -1))
