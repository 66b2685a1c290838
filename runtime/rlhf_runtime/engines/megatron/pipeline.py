"""Micro-batches through the stages of a mesh: Megatron's schedules, with our groups."""

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
from rlhf_runtime.engines.megatron.family import Cut
from rlhf_runtime.engines.megatron.head import Question
from rlhf_runtime.engines.megatron.stage import Stage


@dataclass(frozen=True)
class Inputs:
    """What a stage computes at once, the same on all stages."""

    token_ids: torch.Tensor
    """int64[sequences, longest], padded at the right."""
    position_ids: torch.Tensor | None = None
    """int64 like token_ids; None where positions count from each sequence's beginning."""
    attention_mask: torch.Tensor | None = None
    """bool[sequences, 1, longest, longest], who sees whom; None for plain causal attention."""
    question: Question | None = None
    """What the last stage reads; None: logits."""


Answered = Callable[[int, torch.Tensor], torch.Tensor | None]
"""On ranks of the last stage: from a micro-batch's number and what its question is answered to this
rank's share of the loss. Every tensor rank computes the same share."""


def with_gradients(stage: Stage, *, sharded: bool = False) -> DistributedDataParallel:
    """A stage whose gradients are summed up in float32 over micro-batches, and then over ranks that
    hold the same weights: `parameter.main_grad`.

    Args:
        stage: this rank's; its parameters may move to other memory.
        sharded: whether a replica gets the sums of its share of them only: `MasterWeights.shards`.
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
    model: DistributedDataParallel, micro_batches: Iterable[Inputs], count: int, consume: Answered
) -> None:
    """Run micro-batches forward and backward, one forward and one backward in turns, and sum
    gradients over all ranks that have parts of them.

    Args:
        model: this rank's.
        micro_batches: at least one, and as many on all ranks of the mesh; each is taken when its
            turn comes.
        count: how many there are.
        consume: gives every micro-batch's share of the loss.
    """
    model.zero_grad_buffer()
    _run(model, model.module, micro_batches, count, consume, forward_only=False)


@torch.no_grad()
def infer(stage: Stage, micro_batches: Iterable[Inputs], count: int, consume: Answered) -> None:
    """Run micro-batches forward; on ranks of the last stage `consume` gets what they are asked.
    Arguments as of `forward_backward`."""
    _run(stage, stage, micro_batches, count, consume, forward_only=True)


def _run(
    model: Any,
    stage: Stage,
    micro_batches: Iterable[Inputs],
    count: int,
    consume: Answered,
    *,
    forward_only: bool,
) -> None:
    run = get_forward_backward_func(stage.parallel.at.pipeline_size, None)
    run(
        forward_step_func=partial(_forward, consume=consume),
        data_iterator=iter(enumerate(micro_batches)),
        model=model,
        num_microbatches=count,
        seq_length=0,  # stages tell each other the shapes
        micro_batch_size=0,
        forward_only=forward_only,
        p2p_communicator=P2PCommunicator(stage.pg_collection.pp, stage.config),
        pg_collection=stage.pg_collection,
    )


def _forward(inputs: Any, model: Any, consume: Answered) -> tuple[torch.Tensor, Any]:
    """What Megatron's schedule asks for: outputs, and what makes a loss of those of the last
    stage."""
    number, batch = next(inputs)
    outputs = model(
        batch.token_ids, batch.position_ids, batch.attention_mask, question=batch.question
    )

    def loss(answer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        share = consume(number, answer)
        none = torch.zeros((), dtype=torch.int)
        # A copy: Megatron empties what it has been given.
        return (none if share is None else share.clone()), none, None

    return outputs, loss


def _finish_gradients(models: Any, num_tokens: Any, **options: Any) -> None:
    """Sum gradients; losses have been divided already, so Megatron does not."""
    finalize_model_grads(models, None, **options)
    for model in models:
        _share_copies_gradients(model.module)


def _share_copies_gradients(stage: Stage) -> None:
    """Let tensor ranks step what they hold alike by the same gradient, to the bit.

    Each has computed all of it, but replicas have summed it among those of one tensor rank, and
    nothing says that they did so in the same order: with more than two replicas the order of a
    transport's rings and trees follows from where a group's ranks are. Copies would part by a bit,
    and by more with every update. Only what tensor ranks have parts of, as of norms with sequence
    parallelism, Megatron sums over them afterwards, to the same result on all.
    """
    if stage.parallel.at.tensor_size == 1:
        return
    is_summed = stage.config.sequence_parallel
    gradients = [
        getattr(parameter, "main_grad")  # noqa: B009  # Megatron puts it there
        for parameter, held, _ in stage.held()
        if held.cut is Cut.WHOLE
        and not (is_summed and getattr(parameter, "sequence_parallel", False))
    ]
    if gradients:
        given = torch.cat([gradient.flatten() for gradient in gradients])
        dist.broadcast(given, group=stage.parallel.tensor_group, group_src=0)
        parts = torch.split(given, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
