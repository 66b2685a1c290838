"""Pipeline: runs micro-batches through the stages of a mesh, and sums their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
import torch.distributed as dist

from rlhf_runtime.engines.megatron.core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from rlhf_runtime.engines.megatron.family import WeightSplit
from rlhf_runtime.engines.megatron.pipeline_executor import execute
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.megatron.stage_passes import ConsumeOutputs, Inputs, StagePasses
from rlhf_runtime.engines.megatron.stage_programs import Program, make_program
from rlhf_sizing.schedules import forward_only, one_forward_one_backward


def wrap_with_gradients(stage: Stage, *, sharded: bool = False) -> DistributedDataParallel:
    """Wrap a stage so that `parameter.main_grad` sums gradients in float32.

    It sums over micro-batches, and then over ranks with the same weights.

    Args:
        stage: this rank's; its parameters may move to other memory.
        sharded: True if a replica gets only the sums of its shards: `MasterWeights.shards`.
    """
    assert all(parameter.requires_grad for parameter in stage.parameters())
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
    stage = model.module
    _run(StagePasses(model, stage, micro_batches, consume, trains=True), count, trains=True)
    finish_gradients(model)


@torch.no_grad()
def infer(
    stage: Stage, micro_batches: Iterable[Inputs], count: int, consume: ConsumeOutputs
) -> None:
    """Run micro-batches forward; ranks of the last stage pass results to `consume`.

    Arguments as in `forward_backward`.
    """
    _run(StagePasses(stage, stage, micro_batches, consume, trains=False), count, trains=False)


def _run(passes: StagePasses, count: int, *, trains: bool) -> None:
    parallel = passes.stage.parallel
    program = _program(parallel.at.pipeline, parallel.at.pipeline_size, count, trains)
    execute(program, [passes], parallel.pipeline_group)


# Updates repeat a few counts, and with many stages a program takes a tenth of a second.
@lru_cache(maxsize=256)
def _program(rank: int, num_stages: int, count: int, trains: bool) -> Program:
    orders = (one_forward_one_backward if trains else forward_only)(num_stages, count)
    return make_program(rank, orders, [range(num_stages)])


def finish_gradients(model: DistributedDataParallel) -> None:
    """Sum gradients over ranks."""
    # No count of tokens: losses are shares already, which Megatron must not divide again.
    finalize_model_grads([model], None, pg_collection=model.module.pg_collection)
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
        if mapping.split is WeightSplit.REPLICATED
        and not (is_summed and getattr(parameter, "sequence_parallel", False))
    ]
    if gradients:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.broadcast(flat, group=stage.parallel.tensor_group, group_src=0)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
