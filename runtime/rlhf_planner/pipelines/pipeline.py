"""Training pipelines and their operations: the forward and the backward pass of a micro-batch
through a stage. Pure.

Every micro-batch goes forward through all stages and backward through them again, so several
pipelines on the same devices are a job shop: a micro-batch is a job of two operations for each
stage, each on the device of its stage.
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
        ValueError: stages without a device, times or activations of their own.
    """

    name: str
    devices: tuple[int, ...]
    """Of each stage, from the first layers to the last: numbers from 0 on. A device has one stage
    of a pipeline at most."""
    forward_seconds: tuple[float, ...]
    """Of each stage, for one micro-batch; what it sends to the next stage included."""
    backward_seconds: tuple[float, ...]
    """Of each stage, for one micro-batch; with recomputation, where activations are recomputed."""
    activation_bytes: tuple[int, ...]
    """Of each stage: what one micro-batch keeps from the start of its forward pass to the end of
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
    """A pipeline whose stages are alike."""
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
    """Two models on the same devices in opposite directions: the first stage of the one beside the
    last stage of the other. Of p and q stages they take lcm(p, q) devices, on which there are
    lcm(p, q) / p and lcm(p, q) / q copies of them: replicas, each with micro-batches of its own.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion: K1 and K2 pipelines of actor and critic
    are fused in blocks. Chimera (arXiv 2107.06925) has two directions for one model.

    Args:
        one: its devices do not count.
        other: likewise; it has as many devices for each stage.
    """
    num_devices = lcm(one.num_stages, other.num_stages)
    return (*copies(one, num_devices), *copies(other, num_devices, is_reversed=True))


def copies(pipeline: Pipeline, num_devices: int, is_reversed: bool = False) -> tuple[Pipeline, ...]:
    """As many copies of a pipeline, side by side, as so many devices have room for; where it is
    reversed, each with its first stage on its last device.

    Raises:
        DoesNotDivide: a number of devices that is no multiple of the stages.
    """
    size = pipeline.num_stages
    if num_devices % size:
        raise DoesNotDivide(
            f"copies of {pipeline.name} do not come out even: got {size} stages for {num_devices} "
            "devices, allowed a number of stages that divides them; cut the model otherwise"
        )
    found = []
    for number, first in enumerate(range(0, num_devices, size), start=1):
        devices = range(first, first + size)
        name = pipeline.name if size == num_devices else f"{pipeline.name}#{number}"
        order = tuple(reversed(devices)) if is_reversed else tuple(devices)
        found.append(replace(pipeline, name=name, devices=order))
    return tuple(found)


class Operation(NamedTuple):
    """A micro-batch's way through a stage, in one direction."""

    pipeline: int
    stage: int
    micro_batch: int
    is_backward: bool


Orders = tuple[tuple[int, ...], ...]
"""For each device the numbers of its operations, in the order in which it runs them."""


@dataclass(frozen=True)
class Workload:
    """All operations of some pipelines, numbered: of a pipeline after those of the one before, of a
    micro-batch after those of the one before, in the order in which it goes through them."""

    pipelines: tuple[Pipeline, ...]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """By their numbers."""
        return tuple(
            Operation(number, stage, micro_batch, is_backward)
            for number, pipeline in enumerate(self.pipelines)
            for micro_batch in range(pipeline.micro_batches)
            for is_backward, stages in _both_ways(pipeline.num_stages)
            for stage in stages
        )

    @cached_property
    def first_numbers(self) -> tuple[int, ...]:
        """Of each pipeline: the number of its first operation."""
        firsts, number = [], 0
        for pipeline in self.pipelines:
            firsts.append(number)
            number += 2 * pipeline.num_stages * pipeline.micro_batches
        return tuple(firsts)

    def number(self, operation: Operation) -> int:
        """Of an operation."""
        stages = self.pipelines[operation.pipeline].num_stages
        step = 2 * stages - 1 - operation.stage if operation.is_backward else operation.stage
        return self.first_numbers[operation.pipeline] + operation.micro_batch * 2 * stages + step

    @cached_property
    def num_devices(self) -> int:
        """Devices, also such between them that have no stage."""
        return 1 + max(device for pipeline in self.pipelines for device in pipeline.devices)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Of each operation."""
        return tuple(self.pipelines[op.pipeline].devices[op.stage] for op in self.operations)

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Of each operation."""
        return tuple(
            (pipeline.backward_seconds if op.is_backward else pipeline.forward_seconds)[op.stage]
            for op in self.operations
            for pipeline in [self.pipelines[op.pipeline]]
        )

    @cached_property
    def held_bytes(self) -> tuple[int, ...]:
        """Of each operation: activations that it makes, or, where negative, no longer needs."""
        return tuple(
            -size if op.is_backward else size
            for op in self.operations
            for size in [self.pipelines[op.pipeline].activation_bytes[op.stage]]
        )

    @cached_property
    def all_activation_bytes(self) -> int:
        """Of all micro-batches at once, on the device that then holds most: no schedule needs
        more."""
        held = [0] * self.num_devices
        for device, size in zip(self.devices, self.held_bytes, strict=True):
            held[device] += max(0, size)
        return max(held)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Of each operation: that of the same micro-batch which ends before it starts; -1 for none.

        Forward through a stage comes after forward through the one before; backward through the
        last one after forward through it; backward through another after backward through the next.
        """
        firsts = {self.number(Operation(p, 0, k, False)) for p, k in self._micro_batches}
        return tuple(-1 if n in firsts else n - 1 for n in range(len(self.operations)))

    @cached_property
    def after(self) -> tuple[int, ...]:
        """Of each operation: that of the same micro-batch which starts after its end; -1 for
        none."""
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
