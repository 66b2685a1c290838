"""Scenarios of what a role's devices hold while its generation engine is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.offloading import on_device
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views
from rlhf_runtime.roles import generation as generation_module
from rlhf_runtime.roles.engines import make_engine
from rlhf_runtime.roles.generation import Generation

from ..world_of_processes import Scenario
from .scenario_tools import model_folder
from .small_batch import context_of, make_job, model_of

FREED: Mapping[str, tuple[dict[str, str], tuple[MemoryUse, ...]]] = {
    "FSDP, everything": (
        {"offload": "Always"},
        (MemoryUse.WEIGHTS, MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER),
    ),
    "Megatron, what is derived": (
        {"engine": "Megatron", "precision": "bfloat16", "offload": "Derived"},
        (MemoryUse.WEIGHTS,),
    ),
    "FSDP, nothing": ({"offload": "Never"}, ()),
}
"""By what leaves: a manifest's training, and what is nothing when the engine is built."""


class BuiltBeside:
    """Stands for vLLM's engine: the whole model in storage of its own, and what of the trainer was
    on the device when it was built."""

    def __init__(self, folder: Path, trainer: TrainingEngine) -> None:
        self.trainer_bytes = dict(trainer.bytes_on_device())
        self.version: int | None = None
        self._weights = {
            name: torch.zeros_like(tensor)
            for name, tensor in load_file(folder / "model.safetensors").items()
        }

    def views(self) -> Views:
        return {n: [View(t, TensorSlice.full(tuple(t.shape)))] for n, t in self._weights.items()}

    def restore(self) -> None: ...

    def release(self) -> None: ...

    def publish(self, version: int) -> None:
        self.version = version


def engines_start_where_trainers_have_left(world: World, folder: Path, what: str) -> None:
    """As far as the plan says that these leave; what was bound before is right afterwards."""
    training, freed = FREED[what]
    place = model_folder(world, folder)
    job = make_job(place, models={"actor": model_of(place, **training)})
    ranks = RankGroup(world.rank, world.size, dist.group.WORLD)
    context = replace(context_of(job, "actor", place, world), sync_group=ranks)
    trainer = make_engine(context)
    before = dict(trainer.bytes_on_device())
    made: list[BuiltBeside] = []

    def start(_: Generation, plan: object) -> BuiltBeside:
        made.append(BuiltBeside(place, trainer))
        return made[0]

    with (
        patch.object(generation_module, "TextTokenizer"),
        patch.object(Generation, "_start_engine", start),
    ):
        generation = Generation(context, trainer)
    (engine,) = made
    assert engine.trainer_bytes == {w: 0 if w in freed else size for w, size in before.items()}
    assert trainer.offloaded is context.role_plan.offload
    with on_device(trainer):
        assert trainer.bytes_on_device() == before
        generation.sync_initial_weights()
    for name, expected in load_file(place / "model.safetensors").items():
        ((got, _),) = engine.views()[name]
        assert torch.equal(got, expected.to(context.precision).to(got.dtype)), name


SCENARIOS: dict[str, Scenario] = {
    f"engines start where trainers have left: {what}": partial(
        engines_start_where_trainers_have_left, what=what
    )
    for what in FREED
}
