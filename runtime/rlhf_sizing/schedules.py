"""Orders of forward and backward passes on the devices of a pipeline.

The planner estimates what these orders take; ranks of a pipeline execute them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Operation(NamedTuple):
    """A forward or backward pass of one micro-batch through one stage."""

    pipeline: int
    """Number of the model, counted from 0, if several run on the same devices."""
    stage: int
    micro_batch: int
    is_backward: bool


OperationOrders = Sequence[Sequence[Operation]]
"""Per device: its operations, in the order in which it runs them."""


def one_forward_one_backward(num_stages: int, micro_batches: int) -> tuple[list[Operation], ...]:
    """The 1F1B orders of one pipeline, whose stages are its devices.

    A stage runs as many forward passes as there are stages after it, then one forward and one
    backward pass in turn, then the remaining backward passes. It keeps activations of at most
    min(micro_batches, num_stages - stage) micro-batches. If all p stages take f and b seconds, m
    micro-batches take (m + p - 1) (f + b), of which each stage idles for (p - 1) (f + b).

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM (arXiv 2104.04473), section 2.2 (PipeDream-Flush).

    Args:
        num_stages: 1 or more.
        micro_batches: number of them, 1 or more.
    """
    return tuple(
        alternate_passes(stage, micro_batches, num_stages - 1 - stage)
        for stage in range(num_stages)
    )


def alternate_passes(
    stage: int, micro_batches: int, warm_up: int, pipeline: int = 0
) -> list[Operation]:
    """The order of one stage that runs some forward passes, and then both kinds in turn.

    Args:
        stage: of these operations.
        micro_batches: number of them.
        warm_up: forward passes before the alternation; more than all micro-batches count as all.
        pipeline: of these operations.
    """
    ahead = min(warm_up, micro_batches)
    order = [Operation(pipeline, stage, number, False) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        order.append(Operation(pipeline, stage, ahead + number, False))
        order.append(Operation(pipeline, stage, number, True))
    rest = range(micro_batches - ahead, micro_batches)
    return order + [Operation(pipeline, stage, number, True) for number in rest]


def forward_only(num_stages: int, micro_batches: int) -> tuple[list[Operation], ...]:
    """The orders of one pipeline without backward passes, whose stages are its devices.

    Arguments as in `one_forward_one_backward`.
    """
    return tuple(
        [Operation(0, stage, number, False) for number in range(micro_batches)]
        for stage in range(num_stages)
    )


def predecessor(operation: Operation, num_stages: int) -> Operation | None:
    """The operation of the same micro-batch that must end before this one starts.

    A forward pass follows the forward pass through the previous stage. The backward pass through
    the last stage follows its forward pass. Any other backward pass follows the backward pass
    through the next stage.

    Args:
        operation: whose predecessor.
        num_stages: of its pipeline.
    """
    stage, is_backward = operation.stage, operation.is_backward
    if not is_backward:
        return operation._replace(stage=stage - 1) if stage else None
    if stage == num_stages - 1:
        return operation._replace(is_backward=False)
    return operation._replace(stage=stage + 1)


def end_times(
    orders: OperationOrders,
    seconds: Callable[[Operation], float],
    num_stages: Sequence[int],
) -> Mapping[Operation, float]:
    """The end of each operation, in seconds from the start of the first one.

    Every operation starts as early as the order of its device allows. Messages take no time.

    Args:
        orders: of all devices.
        seconds: duration of an operation.
        num_stages: per pipeline.

    Raises:
        ValueError: devices wait for each other.
    """
    ends: dict[Operation, float] = {}
    next_index, free_at = [0] * len(orders), [0.0] * len(orders)
    has_progress = True
    while has_progress:
        has_progress = False
        for device, order in enumerate(orders):
            while next_index[device] < len(order):
                operation = order[next_index[device]]
                source = predecessor(operation, num_stages[operation.pipeline])
                if source is not None and source not in ends:
                    break
                ready = 0.0 if source is None else ends[source]
                free_at[device] = max(free_at[device], ready) + seconds(operation)
                ends[operation] = free_at[device]
                next_index[device] += 1
                has_progress = True
    waiting = [
        order[index] for order, index in zip(orders, next_index, strict=True) if index < len(order)
    ]
    if waiting:
        raise ValueError(
            f"the order of operations is a deadlock: got {waiting} as the next ones, allowed "
            "operations whose predecessors run; correct the orders"
        )
    return ends
