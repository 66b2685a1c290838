"""Stages run a schedule as data, with the numbers of Megatron's own schedule functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.pipeline_parallel import p2p_communication, schedules
from torch.multiprocessing.reductions import StorageWeakRef

from rlhf_api.mesh import Mesh
from rlhf_runtime.engines.megatron import pipeline
from rlhf_runtime.engines.megatron.head import HeadRequest
from rlhf_runtime.engines.megatron.pipeline import forward_backward, infer, wrap_with_gradients
from rlhf_runtime.engines.megatron.pipeline_executor import execute
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.megatron.stage_passes import ConsumeOutputs, Inputs, StagePasses
from rlhf_runtime.engines.megatron.stage_programs import make_program
from rlhf_runtime.engines.training import ReadLogProbs
from rlhf_runtime.engines.world import World
from rlhf_sizing.schedules import Operation, one_forward_one_backward

from .megatron_models import VOCABULARY
from .megatron_stages import context_of, stage_of, write_once

SHAPES = ((2, 8), (3, 12), (1, 6), (4, 4), (2, 10))
"""Sequences and their lengths of each micro-batch; multiples of two, for sequence parallelism."""
PREDICTED, NOT_PREDICTED = 1, 3
"""Micro-batches that request log-probabilities: of some tokens, and of none."""
COUNTS = (1, 2, len(SHAPES))

Results = dict[str, torch.Tensor]
"""Outputs of micro-batches on ranks of the last stage, and gradients of all weights."""


def stages_compute_as_megatrons_schedule(
    world: World, folder: Path, mesh: Mesh, kind: str, sequence_parallel: bool = False
) -> None:
    """To the bit, forward and backward and forward only, whatever the number of micro-batches."""
    place = write_once(world, kind, folder)
    stage = stage_of(place, context_of(world, mesh), sequence_parallel=sequence_parallel)
    runs = [infer_both(stage, batches()[:count]) for count in COUNTS]
    model = wrap_with_gradients(stage)
    runs += [train_both(model, batches()[:count]) for count in COUNTS]
    runs.append(train_with_a_constant(model))
    # Compared at the end: a rank that fails before would let the others wait.
    for ours, expected in runs:
        assert ours.keys() == expected.keys()
        assert all(torch.equal(ours[name], expected[name]) for name in ours)
    for ours, _ in runs[len(COUNTS) :]:
        assert all(ours[name].any() for name, _ in stage.named_parameters())


def outputs_are_freed_once_sent(
    world: World, folder: Path, mesh: Mesh, kind: str, recompute: bool
) -> None:
    """The backward pass needs the graph of an output. Its values are the input of the next stage.

    When a pass begins, at most one output of earlier passes is there: the last one, whose message
    may still be on its way; and none when a gradient has arrived.
    """
    stage = stage_of(write_once(world, kind, folder), context_of(world, mesh), recompute=recompute)
    model = wrap_with_gradients(stage)
    counts = {"forward": list[int](), "backward": list[int]()}
    storages: list[StorageWeakRef] = []

    class CountingPasses(StagePasses):
        def forward(self, micro_batch: int, hidden: torch.Tensor | None) -> torch.Tensor | None:
            counts["forward"].append(sum(not storage.expired() for storage in storages))
            output = super().forward(micro_batch, hidden)
            if output is not None:
                storages.append(StorageWeakRef(output.untyped_storage()))
            return output

        def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
            counts["backward"].append(sum(not storage.expired() for storage in storages))
            return super().backward(micro_batch, gradient)

    with patch.object(pipeline, "StagePasses", CountingPasses):
        forward_backward(model, batches(), len(SHAPES), lambda _, result: share_of(result))
    assert len(storages) == (0 if stage.parallel.is_last_stage else len(SHAPES))
    assert len(counts["forward"]) == len(counts["backward"]) == len(SHAPES)
    assert max(counts["forward"]) <= 1 and max(counts["backward"]) == 0, counts
    assert stage.decoder.input_tensor is None


def models_take_turns_on_their_stages(world: World, folder: Path, mesh: Mesh, kind: str) -> None:
    """One program runs two models, whose passes alternate; gradients are those of each alone."""
    place, parallel = write_once(world, kind, folder), context_of(world, mesh)
    models = [wrap_with_gradients(stage_of(place, parallel)) for _ in range(2)]
    inputs = [batches()[:3], batches()[1:]]
    expected, passes = [], []
    for model, own in zip(models, inputs, strict=True):
        forward_backward(model, own, len(own), lambda _, result: share_of(result))
        expected.append(gradients(model))
        model.zero_grad_buffer()
        passes.append(
            StagePasses(model, model.module, own, lambda _, result: share_of(result), trains=True)
        )
    stages = range(mesh.pipeline)
    orders = [taking_turns(stage, mesh.pipeline, [len(own) for own in inputs]) for stage in stages]
    program = make_program(parallel.at.pipeline, orders, [stages, stages])
    execute(program, passes, parallel.pipeline_group)
    for model, alone in zip(models, expected, strict=True):
        pipeline.finish_gradients(model)
        ours = gradients(model)
        assert all(torch.equal(ours[name], alone[name]) for name in alone)


def taking_turns(stage: int, num_stages: int, counts: Sequence[int]) -> list[Operation]:
    """1F1B of every model, an operation of each in turn; a short one ends early."""
    orders = [
        [
            operation._replace(pipeline=model)
            for operation in one_forward_one_backward(num_stages, count)[stage]
        ]
        for model, count in enumerate(counts)
    ]
    turns = zip_longest(*orders)
    return [operation for turn in turns for operation in turn if operation is not None]


def batches() -> list[Inputs]:
    draw = torch.Generator().manual_seed(1)
    inputs = [Inputs(torch.randint(0, VOCABULARY, shape, generator=draw)) for shape in SHAPES]
    reading = ReadLogProbs(0.9, with_entropy=True, entropy_gradient=True)
    for number, count in ((PREDICTED, 5), (NOT_PREDICTED, 0)):
        request = HeadRequest(reading, torch.arange(count), torch.arange(count) + 10)
        inputs[number] = Inputs(inputs[number].token_ids, request=request)
    return inputs


def share_of(result: torch.Tensor) -> torch.Tensor:
    return (result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum() / 50


def keep_in(found: Results) -> ConsumeOutputs:
    def consume(number: int, result: torch.Tensor) -> torch.Tensor:
        found[f"output {number}"] = result.detach().clone()
        return share_of(result)

    return consume


def infer_both(stage: Stage, inputs: Sequence[Inputs]) -> tuple[Results, Results]:
    ours, expected = Results(), Results()
    infer(stage, inputs, len(inputs), keep_in(ours))
    with torch.no_grad():
        run_megatrons(stage, stage, inputs, keep_in(expected), forward_only=True)
    return ours, expected


def train_both(model: Any, inputs: Sequence[Inputs]) -> tuple[Results, Results]:
    ours, expected = Results(), Results()
    forward_backward(model, inputs, len(inputs), keep_in(ours))
    ours |= gradients(model)
    model.zero_grad_buffer()
    run_megatrons(model, model.module, inputs, keep_in(expected), forward_only=False)
    return ours, expected | gradients(model)


def train_with_a_constant(model: Any) -> tuple[Results, Results]:
    """A loss without a gradient adds nothing. Megatron's stages would wait for ever."""
    inputs = batches()[:2]
    ours, expected = Results(), Results()

    def consume(number: int, result: torch.Tensor) -> torch.Tensor:
        return share_of(result) if number else torch.zeros(())

    forward_backward(model, inputs, len(inputs), consume)
    ours |= gradients(model)
    forward_backward(model, inputs[1:], 1, lambda _, result: share_of(result))
    return ours, expected | gradients(model)


def gradients(model: Any) -> Results:
    return {
        name: parameter.main_grad.clone() for name, parameter in model.module.named_parameters()
    }


def run_megatrons(
    model: Any,
    stage: Stage,
    inputs: Sequence[Inputs],
    consume: ConsumeOutputs,
    *,
    forward_only: bool,
) -> None:
    """Megatron's own function, with the settings that it needs."""

    def forward(data: Iterator[tuple[int, Inputs]], model: Any) -> tuple[torch.Tensor, Any]:
        number, batch = next(data)
        output = model(
            batch.token_ids, batch.position_ids, batch.attention_mask, request=batch.request
        )
        zero = torch.zeros((), dtype=torch.int)
        return output, lambda result: (consume(number, result), zero, None)

    group = stage.pg_collection.pp
    with megatrons_settings(stage):
        schedules.get_forward_backward_func(group.size(), None)(
            forward_step_func=forward,
            data_iterator=iter(enumerate(inputs)),
            model=model,
            num_microbatches=len(inputs),
            seq_length=0,
            micro_batch_size=0,
            forward_only=forward_only,
            p2p_communicator=p2p_communication.P2PCommunicator(group, stage.config),
            pg_collection=stage.pg_collection,
        )


@contextmanager
def megatrons_settings(stage: Stage) -> Iterator[None]:
    settings = {
        "variable_seq_lengths": True,  # stages exchange shapes
        "deallocate_pipeline_outputs": True,
        "finalize_model_grads_func": lambda models, *_, **__: pipeline.finish_gradients(*models),
    }
    seen = torch if stage.parallel.device.type == "cuda" else CpuTorch("torch")
    with (
        patch.multiple(stage.config, **settings),
        patch.object(schedules, "torch", seen),
        patch.object(p2p_communication, "torch", seen),
    ):
        yield


class CpuTorch(ModuleType):
    """torch as Megatron's schedules see it without a GPU."""

    cuda = SimpleNamespace(current_device=lambda: torch.device("cpu"), synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, **options)
