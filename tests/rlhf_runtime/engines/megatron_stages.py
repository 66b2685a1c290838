"""Stages of tiny models, for scenarios of Megatron's stages."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoConfig

from rlhf_api.mesh import Mesh
from rlhf_runtime.engines.megatron.files import load_model
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.world import World

from ..meshes import contexts_of
from .megatron_models import write_model


def context_of(world: World, mesh: Mesh) -> ParallelContext:
    """Beside that of another role, on some of the ranks: these are in more groups than others."""
    other = Mesh(pool=mesh.pool, data=max(1, world.size // 2))
    return contexts_of(world, other, mesh)[mesh]


def write_once(world: World, kind: str, folder: Path, shard_size: str = "5GB") -> Path:
    place = folder / "model"
    if world.rank == 0:
        write_model(kind, place, shard_size)
    dist.barrier()
    return place


def stage_of(
    place: Path,
    parallel: ParallelContext,
    *,
    sequence_parallel: bool = False,
    recompute: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Stage:
    """A stage with its weights; memory that nobody wrote to is NaN."""
    config = AutoConfig.from_pretrained(place)
    torch.use_deterministic_algorithms(True)  # fills new memory
    try:
        stage = Stage(
            config,
            parallel,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
            dtype=dtype,
        )
    finally:
        torch.use_deterministic_algorithms(False)
    load_model(stage.views(), stage.architecture, place)
    return stage
