"""Scenarios of saving and going on, for test_saving: run on one rank or on two."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.models import LearningRateDecay
from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.checkpoint.saver import Saver
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed
from rlhf_runtime.roles.saving import restore, state_of

from ..engines.contract_setup import Built, Setup, model_folder, settings, whole_weights
from ..engines.fsdp_ranks import local_weights
from ..meshes import mesh_of
from ..world_of_processes import Scenario, run_scenarios

POOL = "pool"
LINEAR = settings(decay=LearningRateDecay.LINEAR, warmup_updates=2, total_updates=9)


def setup_of(world: World) -> Setup:
    return Setup(FsdpEngine, mesh_of(0, world.size))


def trained(world: World, folder: Path, updates: int) -> Built:
    """A model after so many updates."""
    model = setup_of(world).build(model_folder("llama", world, folder), world)
    model.engine.use_optimizer(LINEAR)
    update(model, updates)
    return model


def update(model: Built, times: int) -> list[float]:
    """Gradient norms of so many updates."""
    return [model.train() for _ in range(times)]


def assert_equal(one: Built, other: Built) -> None:
    """Bit by bit, on this rank."""
    for tensor, others in zip(local_weights(one.engine), local_weights(other.engine), strict=True):
        assert torch.equal(tensor, others)
    assert one.engine.version == other.engine.version
    assert one.engine.learning_rate == other.engine.learning_rate


def saved(world: World, folder: Path, model: Built) -> tuple[str, Saver]:
    """A checkpoint that is being written."""
    address = str(folder / "saved")
    saver = Saver(world)
    saver.begin(state_of({"actor": model.engine}, {}, world), f"{address}/{POOL}")
    return address, saver


def going_on_is_never_having_stopped(world: World, folder: Path, before: int) -> None:
    model = trained(world, folder, before)
    address, saver = saved(world, folder, model)
    norms = update(model, 3)  # while it is written
    files = saver.finish()
    assert sorted(files) == [
        *([".metadata"] if world.rank == 0 else []),
        f"__{world.rank}_0.distcp",
    ]
    assert all(isinstance(file, SavedFile) and file.num_bytes > 0 for file in files.values())
    dist.barrier()
    other = trained(world, folder, 1)
    restore({"actor": other.engine}, {}, world, address, POOL)
    assert update(other, 3) == norms
    assert_equal(other, model)


def a_frozen_model_comes_back(world: World, folder: Path) -> None:
    model = trained(world, folder, 2)
    frozen = setup_of(world).build(folder / "llama", world, trained=False)
    frozen.engine.copy_weights_from(model.engine)
    address = str(folder / "saved")
    saver = Saver(world)
    saver.begin(
        state_of({"actor": model.engine, "reference": frozen.engine}, {}, world),
        f"{address}/{POOL}",
    )
    saver.finish()
    dist.barrier()
    fresh = setup_of(world).build(folder / "llama", world, trained=False)
    restore({"reference": fresh.engine}, {}, world, address, POOL)
    for tensor, others in zip(
        local_weights(fresh.engine), local_weights(model.engine), strict=True
    ):
        assert torch.equal(tensor, others)


def is_here(engine: TrainingEngine) -> bool:
    return engine.offloaded is OffloadDepth.NOTHING


def offloaded_roles_are_saved_and_go_on(world: World, folder: Path) -> None:
    """They are where they were afterwards, and no two of them are on the device at once."""
    actor, critic = trained(world, folder, 2), trained(world, folder, 1)
    engines = {"actor": actor.engine, "critic": critic.engine}
    expected = {
        role: whole_weights(built) for role, built in (("actor", actor), ("critic", critic))
    }
    for engine in engines.values():
        engine.offload(OffloadDepth.EVERYTHING)
    address, saver = str(folder / "saved"), Saver(world)
    on_device = []

    def watched() -> Iterator[dict[str, Any]]:
        for part in state_of(engines, {}, world):
            on_device.append([role for role, each in engines.items() if is_here(each)])
            yield part

    saver.begin(watched(), f"{address}/{POOL}")
    assert on_device == [["actor"], ["critic"], []]
    assert not any(is_here(engine) for engine in engines.values())
    saver.finish()
    dist.barrier()
    others = {"actor": trained(world, folder, 1), "critic": trained(world, folder, 0)}
    for built in others.values():
        built.engine.offload(OffloadDepth.EVERYTHING)
    restore({role: built.engine for role, built in others.items()}, {}, world, address, POOL)
    assert not any(is_here(built.engine) for built in others.values())
    for built in (actor, critic, *others.values()):
        built.engine.load()
    for role, built in others.items():
        for name, tensor in whole_weights(built).items():
            assert torch.equal(tensor, expected[role][name]), name
    assert update(others["actor"], 2) == update(actor, 2)
    assert update(others["critic"], 2) == update(critic, 2)
    assert_equal(others["actor"], actor)
    assert_equal(others["critic"], critic)


def what_operations_keep_comes_back(world: World, folder: Path) -> None:
    model = trained(world, folder, 1)
    kept = {"multiplier": torch.tensor(1.0 / 3.0, dtype=torch.float64)}
    address, saver = str(folder / "saved"), Saver(world)
    saver.begin(state_of({"actor": model.engine}, kept, world), f"{address}/{POOL}")
    kept["multiplier"] += 1  # while it is written
    saver.finish()
    dist.barrier()
    operations: dict[str, torch.Tensor] = {}
    restore({"actor": model.engine}, operations, world, address, POOL)
    assert operations == {"multiplier": torch.tensor(1.0 / 3.0, dtype=torch.float64)}


def random_numbers_go_on(world: World, folder: Path) -> None:
    model = trained(world, folder, 0)
    torch.manual_seed(world.rank)
    np.random.seed(world.rank)
    random.seed(world.rank)
    address, saver = saved(world, folder, model)

    def draw() -> tuple[float, float, float]:
        return float(torch.rand(1)), float(np.random.rand()), random.random()

    expected = draw()
    saver.finish()
    dist.barrier()
    restore({"actor": model.engine}, {}, world, address, POOL)
    assert draw() == expected


def what_cannot_be_written_is_told_and_the_next_one_is(world: World, folder: Path) -> None:
    model = trained(world, folder, 1)
    saver = Saver(world)
    assert saver.finish() == {}
    (folder / "file").touch()
    saver.begin(state_of({"actor": model.engine}, {}, world), str(folder / "file" / "below"))
    try:
        saver.finish()
    except CheckpointFailed as error:
        assert "file" in str(error), error
    else:
        raise AssertionError("a folder below a file was written")
    saver.begin(state_of({"actor": model.engine}, {}, world), str(folder / "saved"))
    assert saver.finish()


def what_does_not_fit_is_told(world: World, folder: Path) -> None:
    model = trained(world, folder, 1)
    address, saver = saved(world, folder, model)
    saver.finish()
    dist.barrier()
    try:
        restore({"critic": model.engine}, {}, world, address, POOL)
    except CheckpointFailed as error:
        assert "roles.critic" in str(error), error
    else:
        raise AssertionError("a role that was not saved was restored")


SCENARIOS: dict[str, Scenario] = {
    "going on is never having stopped": lambda world, folder: going_on_is_never_having_stopped(
        world, folder, 3
    ),
    "before the first update": lambda world, folder: going_on_is_never_having_stopped(
        world, folder, 0
    ),
    "a frozen model comes back": a_frozen_model_comes_back,
    "offloaded roles are saved and go on": offloaded_roles_are_saved_and_go_on,
    "what operations keep comes back": what_operations_keep_comes_back,
    "random numbers go on": random_numbers_go_on,
    "what does not fit is told": what_does_not_fit_is_told,
    "what cannot be written is told, and the next one is": (
        what_cannot_be_written_is_told_and_the_next_one_is
    ),
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
