"""What tensor ranks hold alike stays alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from rlhf_api.mesh import Mesh
from rlhf_runtime.engines.megatron import pipeline
from rlhf_runtime.engines.megatron.engine import MegatronEngine, ShardingOptions
from rlhf_runtime.engines.megatron.family import WeightSplit
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import TokenOutputs, WeightedLoss
from rlhf_runtime.engines.world import World

from .contract_setup import LANGUAGE, NUM_TOKENS, SCALAR, Built, Setup, mine, model_folder, settings


def copies_stay_alike(
    world: World, folder: Path, mesh: Mesh, sequence_parallel: bool, distributed: bool
) -> None:
    """To the bit, norms and a scalar head, though the sums over replicas are others on each tensor
    rank, as in another order."""
    place = model_folder("qwen3", world, folder)
    setup = Setup(
        MegatronEngine, mesh, {"sharding": ShardingOptions(sequence_parallel, distributed)}
    )
    for value_head in (False, True):
        built = setup.build(place, world, value_head=value_head)
        built.engine.use_optimizer(settings())
        before = copies(built)
        with sums_that_differ():
            for _ in range(3):
                train(built, value_head)
        after = copies(built)
        assert len(after) == 2 * 4 + 1 + value_head
        assert all(not torch.equal(before[name], after[name]) for name in after)
        everyone: list[Any] = [None] * mesh.tensor
        dist.all_gather_object(everyone, after, built.parallel.tensor_group)
        assert all(
            torch.equal(first, each[name])
            for each in everyone
            for name, first in everyone[0].items()
        )


def train(built: Built, value_head: bool) -> None:
    def squares(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
        return (outputs.values - 1).square().sum() / NUM_TOKENS

    reading = SCALAR if value_head else LANGUAGE
    built.engine.update([WeightedLoss(reading, mine(built, 40), squares)])


def copies(built: Built) -> dict[str, torch.Tensor]:
    """What every tensor rank holds whole."""
    stage = built.engine.stage  # type: ignore[attr-defined]
    return {
        f"{layer} {held.path}": parameter.detach().clone()
        for parameter, held, layer in stage.mapped_parameters()
        if held.split is WeightSplit.REPLICATED
    }


@contextmanager
def sums_that_differ() -> Iterator[None]:
    """Gradients of what is held whole are a little larger on other tensor ranks than the first."""
    finish = pipeline.finalize_model_grads

    def finish_otherwise(models: Any, *given: Any, **options: Any) -> None:
        for model in models:
            for parameter, held, _ in model.module.mapped_parameters():
                if held.split is WeightSplit.REPLICATED:
                    parameter.main_grad *= 1 + 1e-5 * model.module.parallel.at.tensor
        finish(models, *given, **options)

    with patch.object(pipeline, "finalize_model_grads", finish_otherwise):
        yield
