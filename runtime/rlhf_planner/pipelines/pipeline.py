"""Training pipelines and their operations: the forward and the backward pass of a micro-batch
through
a stage. Pure.

Every micro-batch goes forward through all stages and backward through them again, so several
pipelines on the same devices are a job shop: a micro-batch is a job of two operations per stage,
each on the device of its stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, lcm
from typing import NamedTuple

from rlhf_flow.errors import DoesNotDivide


@dataclass(frozen=True)
class Pipeline:
    """A model in stages, and the micro-batches of one optimizer step.

    Raises:
        ValueError: a stage without its own device, times or activations.
    """

    name: str
    devices: tuple[int, ...]
    """Device of each stage, from the first layers to the last, from 0. A device has at most one
    stage of a pipeline."""
    forward_seconds: tuple[float, ...]
    """Per stage, for one micro-batch, with its message to the next stage."""
    backward_seconds: tuple[float, ...]
    """Per stage, for one micro-batch, with recomputation if activations are recomputed."""
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
        """Number of stages."""
        return len(self.devices)


def uniform_pipeline(
    name: str,
    devices: Sequence[int],
    forward_seconds: float,
    backward_seconds: float,
    micro_batches: int,
    activation_bytes: int = 1,
) -> Pipeline:
    """A pipeline with equal stages."""
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
    """Pipelines of two models on the same devices in opposite directions: the first stage of one is
    on the
    device of the last stage of the other. With p and q stages they use lcm(p, q) devices, and
    lcm(p, q) / p and lcm(p, q) / q copies: replicas, each with its own micro-batches.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: K1 and K2 pipelines of actor and critic
    are
    fused in blocks. Chimera (arXiv 2107.06925) has two directions for one model.

    Args:
        one: its devices are ignored.
        other: likewise; it has the same number of devices per stage.
    """
    num_devices = lcm(one.num_stages, other.num_stages)
    return (*copies(one, num_devices), *copies(other, num_devices, is_reversed=True))


def copies(pipeline: Pipeline, num_devices: int, is_reversed: bool = False) -> tuple[Pipeline, ...]:
    """Copies of a pipeline, side by side, that fill a number of devices; if reversed, each has its
    first
    stage on its last device.

    Raises:
        DoesNotDivide: a number of devices that is no multiple of the stages.
    """
    size = pipeline.num_stages
    if num_devices % size:
        raise DoesNotDivide(
            f"copies of {pipeline.name} do not come out even: got {size} stages for {num_devices} "
            "devices, allowed a number of stages that divides them; cut the model otherwise"
        )
    pipelines = []
    for number, first in enumerate(range(0, num_devices, size), start=1):
        devices = range(first, first + size)
        name = pipeline.name if size == num_devices else f"{pipeline.name}#{number}"
        order = tuple(reversed(devices)) if is_reversed else tuple(devices)
        pipelines.append(replace(pipeline, name=name, devices=order))
    return tuple(pipelines)


class Operation(NamedTuple):
    """A pass of a micro-batch through a stage, in one direction."""

    pipeline: int
    stage: int
    micro_batch: int
    is_backward: bool


Orders = tuple[tuple[int, ...], ...]
"""Operations of each device, in the order in which it runs them."""


@dataclass(frozen=True)
class Workload:
    """All operations of some pipelines, numbered by pipeline, then by micro-batch, then in the
    order of its passes."""

    pipelines: tuple[Pipeline, ...]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """Operations by number."""
        return tuple(
            Operation(number, stage, micro_batch, is_backward)
            for number, pipeline in enumerate(self.pipelines)
            for micro_batch in range(pipeline.micro_batches)
            for is_backward, stages in _both_ways(pipeline.num_stages)
            for stage in stages
        )

    @cached_property
    def first_numbers(self) -> tuple[int, ...]:
        """First operation of each pipeline."""
        firsts, number = [], 0
        for pipeline in self.pipelines:
            firsts.append(number)
            number += 2 * pipeline.num_stages * pipeline.micro_batches
        return tuple(firsts)

    def number(self, operation: Operation) -> int:
        """Number of an operation."""
        stages = self.pipelines[operation.pipeline].num_stages
        step = 2 * stages - 1 - operation.stage if operation.is_backward else operation.stage
        return self.first_numbers[operation.pipeline] + operation.micro_batch * 2 * stages + step

    @cached_property
    def num_devices(self) -> int:
        """Number of devices, unused ones between them included."""
        return 1 + max(device for pipeline in self.pipelines for device in pipeline.devices)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Device of each operation."""
        return tuple(self.pipelines[op.pipeline].devices[op.stage] for op in self.operations)

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Duration of each operation."""
        return tuple(
            (pipeline.backward_seconds if op.is_backward else pipeline.forward_seconds)[op.stage]
            for op in self.operations
            for pipeline in [self.pipelines[op.pipeline]]
        )

    @cached_property
    def activation_changes(self) -> tuple[int, ...]:
        """Activation bytes that each operation allocates or, if negative, releases."""
        return tuple(
            -size if op.is_backward else size
            for op in self.operations
            for size in [self.pipelines[op.pipeline].activation_bytes[op.stage]]
        )

    @cached_property
    def all_activation_bytes(self) -> int:
        """Peak bytes of a device if all micro-batches are in flight: an upper bound for every
        schedule."""
        resident = [0] * self.num_devices
        for device, size in zip(self.devices, self.activation_changes, strict=True):
            resident[device] += max(0, size)
        return max(resident)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Predecessor of each operation in its micro-batch; -1 for none."""
        # Forward through a stage follows forward through the stage before; backward through the
        # last stage follows forward through it; backward elsewhere follows backward through the
        # next stage.
        firsts = {self.number(Operation(p, 0, k, False)) for p, k in self._micro_batches}
        return tuple(-1 if n in firsts else n - 1 for n in range(len(self.operations)))

    @cached_property
    def after(self) -> tuple[int, ...]:
        """Successor of each operation in its micro-batch; -1 for none."""
        lasts = {self.number(Operation(p, 0, k, True)) for p, k in self._micro_batches}
        return tuple(-1 if n in lasts else n + 1 for n in range(len(self.operations)))

    @property
    def _micro_batches(self) -> list[tuple[int, int]]:
        return [
            (number, micro_batch)
            for number, pipeline in enumerate(self.pipelines)
            for micro_batch in range(pipeline.micro_batches)
        ]


def _both_ways(num_stages: int) -> tuple[tuple[bool, range], tuple[bool, range]]:
    return (False, range(num_stages)), (True, range(num_stages - 1, -1, -1))
