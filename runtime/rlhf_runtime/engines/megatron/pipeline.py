"""Pipeline: runs micro-batches through the stages of a mesh with Megatron's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rlhf_runtime.engines.megatron.core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    P2PCommunicator,
    finalize_model_grads,
    get_forward_backward_func,
)
from rlhf_runtime.engines.megatron.family import WeightSplit
from rlhf_runtime.engines.megatron.head import HeadRequest
from rlhf_runtime.engines.megatron.stage import Stage


@dataclass(frozen=True)
class Inputs:
    """Inputs of one micro-batch, the same on all stages."""

    token_ids: torch.Tensor
    """int64[sequences, longest], padded on the right."""
    position_ids: torch.Tensor | None = None
    """int64[sequences, longest]; None: 0, 1, 2, ... in every sequence."""
    attention_mask: torch.Tensor | None = None
    """bool[sequences, 1, longest, longest], true where attention is allowed; None: causal."""
    request: HeadRequest | None = None
    """Outputs of the last stage; None: logits."""


ConsumeOutputs = Callable[[int, torch.Tensor], torch.Tensor | None]
"""Called on ranks of the last stage with a micro-batch's number and the result of its request;
returns this rank's share of the loss. Every tensor rank computes the same share."""


def wrap_with_gradients(stage: Stage, *, sharded: bool = False) -> DistributedDataParallel:
    """Wrap a stage so that `parameter.main_grad` sums gradients in float32.

    It sums over micro-batches, and then over ranks with the same weights.

    Args:
        stage: this rank's; its parameters may move to other memory.
        sharded: True if a replica gets only the sums of its shards: `MasterWeights.shards`.
    """
    assert all(parameter.requires_grad for parameter in stage.parameters())
    stage.config.finalize_model_grads_func = _finish_gradients
    return DistributedDataParallel(
        stage.config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=sharded),
        stage,
        pg_collection=stage.pg_collection,
    )


def forward_backward(
    model: DistributedDataParallel,
    micro_batches: Iterable[Inputs],
    count: int,
    consume: ConsumeOutputs,
) -> None:
    """Run micro-batches forward and backward (1F1B), and sum gradients over all ranks.

    Args:
        model: this rank's.
        micro_batches: at least one, equally many on all ranks of the mesh; consumed lazily.
        count: number of micro-batches.
        consume: computes every micro-batch's share of the loss.
    """
    model.zero_grad_buffer()
    _run(model, model.module, micro_batches, count, consume, forward_only=False)


@torch.no_grad()
def infer(
    stage: Stage, micro_batches: Iterable[Inputs], count: int, consume: ConsumeOutputs
) -> None:
    """Run micro-batches forward; ranks of the last stage pass results to `consume`.

    Arguments as in `forward_backward`.
    """
    _run(stage, stage, micro_batches, count, consume, forward_only=True)


def _run(
    model: Any,
    stage: Stage,
    micro_batches: Iterable[Inputs],
    count: int,
    consume: ConsumeOutputs,
    *,
    forward_only: bool,
) -> None:
    run = get_forward_backward_func(stage.parallel.at.pipeline_size, None)
    run(
        forward_step_func=partial(_forward, consume=consume),
        data_iterator=iter(enumerate(micro_batches)),
        model=model,
        num_microbatches=count,
        seq_length=0,  # stages exchange shapes: sequences vary in length
        micro_batch_size=0,
        forward_only=forward_only,
        p2p_communicator=P2PCommunicator(stage.pg_collection.pp, stage.config),
        pg_collection=stage.pg_collection,
    )


def _forward(inputs: Any, model: Any, consume: ConsumeOutputs) -> tuple[torch.Tensor, Any]:
    """The forward step of Megatron's schedule: returns outputs and the loss function of the last
    stage."""
    number, batch = next(inputs)
    outputs = model(
        batch.token_ids, batch.position_ids, batch.attention_mask, request=batch.request
    )

    def loss(result: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        share = consume(number, result)
        zero = torch.zeros((), dtype=torch.int)
        # A copy: Megatron frees the storage of the tensor that it gets.
        return (zero if share is None else share.clone()), zero, None

    return outputs, loss


def _finish_gradients(models: Any, num_tokens: Any, **options: Any) -> None:
    """Sum gradients over ranks."""
    # No count of tokens: losses are shares already, which Megatron must not divide again.
    finalize_model_grads(models, None, **options)
    for model in models:
        _sync_replicated_gradients(model.module)


def _sync_replicated_gradients(stage: Stage) -> None:
    """Make the gradients of replicated parameters bitwise equal on all tensor ranks."""
    # Every tensor rank has computed all of such a gradient, and its replicas have summed it within
    # a group of their own. With more than two replicas the order of the sum depends on the nodes of
    # the group's ranks, so that copies would drift apart with every update.
    if stage.parallel.at.tensor_size == 1:
        return
    # With sequence parallelism tensor ranks have parts of norms' gradients: Megatron sums those
    # over tensor ranks afterwards, with equal results.
    is_summed = stage.config.sequence_parallel
    gradients = [
        getattr(parameter, "main_grad")  # noqa: B009  # Megatron puts it there
        for parameter, mapping, _ in stage.mapped_parameters()
        if mapping.cut is WeightSplit.REPLICATED
        and not (is_summed and getattr(parameter, "sequence_parallel", False))
    ]
    if gradients:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.broadcast(flat, group=stage.parallel.tensor_group, group_src=0)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
