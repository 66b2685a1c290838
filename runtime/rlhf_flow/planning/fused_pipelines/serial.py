"""Pipelines one after the other, each with one forward and one backward pass in turn. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_flow.planning.fused_pipelines.pipeline import Operation, Orders, Pipeline, Workload
from rlhf_flow.planning.fused_pipelines.schedule import Schedule, schedule_of


def one_forward_one_backward(
    pipeline: Pipeline, stage: int, limit: int | None = None
) -> list[tuple[int, bool]]:
    """The order of a stage under 1F1B: micro-batches, and whether backward.

    A stage does as many forward passes as there are stages after it, then one forward and one
    backward pass in turn, then the backward passes that are left. So it holds the activations of at
    most min(micro-batches, stages - stage) micro-batches. Where all p stages take f and b seconds,
    m micro-batches take (m + p - 1) (f + b), of which each stage stands still for (p - 1) (f + b).

    Under a limit on activations a stage does fewer forward passes at first, and no stage after it
    more than it does: that stage would wait for micro-batches that it never gets.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM (arXiv 2104.04473), section 2.2 (PipeDream-Flush).

    Args:
        pipeline: of which.
        stage: from 0 on.
        limit: bytes of activations on each device, enough for one micro-batch. None: any number.
    """
    count = pipeline.micro_batches
    ahead = min(count, pipeline.num_stages - 1 - stage)
    if limit is not None:
        for size in pipeline.activation_bytes[: stage + 1]:
            ahead = min(ahead, limit // size - 1) if size else ahead
    order = [(number, False) for number in range(ahead)]
    for number in range(count - ahead):
        order += [(ahead + number, False), (number, True)]
    return order + [(number, True) for number in range(count - ahead, count)]


def serial_orders(
    workload: Workload, limit: int | None = None, is_last_first: bool = False
) -> Orders:
    """On each device one pipeline after the other; one begins where the one before has ended on all
    of its devices, or earlier.

    Args:
        workload: all operations.
        limit: bytes of activations on each device, as for `one_forward_one_backward`.
        is_last_first: whether the last pipeline goes first.
    """
    orders: list[list[int]] = [[] for _ in range(workload.num_devices)]
    indices = range(len(workload.pipelines))
    for index in reversed(indices) if is_last_first else indices:
        pipeline = workload.pipelines[index]
        for stage, device in enumerate(pipeline.devices):
            orders[device] += [
                workload.number(Operation(index, stage, micro_batch, is_backward))
                for micro_batch, is_backward in one_forward_one_backward(pipeline, stage, limit)
            ]
    return tuple(map(tuple, orders))


def schedule_alone(pipeline: Pipeline, limit: int | None = None) -> Schedule:
    """A pipeline with nothing beside it, under 1F1B."""
    workload = Workload((pipeline,))
    schedule = schedule_of(workload, serial_orders(workload, limit))
    assert schedule is not None
    return schedule


def serial_seconds(pipelines: Sequence[Pipeline], limit: int | None = None) -> float:
    """Seconds of pipelines under 1F1B, each of which begins when those before it that share a
    device with it have ended on all of theirs."""
    ends: list[float] = []
    for index, pipeline in enumerate(pipelines):
        begin = max(
            (
                end
                for end, earlier in zip(ends, pipelines[:index], strict=True)
                if {*earlier.devices} & {*pipeline.devices}
            ),
            default=0.0,
        )
        ends.append(begin + schedule_alone(pipeline, limit).makespan_seconds)
    return max(ends)
