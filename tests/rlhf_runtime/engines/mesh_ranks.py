"""Scenarios of roles on parts of a world, for test_meshes: run on four ranks.

Run as `python -m tests.rlhf_runtime.engines.mesh_ranks RANK WORLD_SIZE FOLDER`. Oracles are those
of the scenarios on whole worlds, and sums worked out by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from rlhf_api.mesh import Mesh
from rlhf_runtime.checkpoint.saver import Saver
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.megatron.engine import MegatronEngine, ShardingOptions
from rlhf_runtime.engines.parallel import ParallelContext, make_contexts
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.saving import restore, state_of

from ..meshes import mesh_of, part_of
from ..world_of_processes import Scenario, run_scenarios
from .contract_models import check_saved_models
from .contract_reading import check_outputs
from .contract_setup import Built, Setup, assert_same_weights, model_folder, settings, whole_weights
from .contract_updates import check_updates
from .megatron_cases import REPLICAS_OF_TENSOR, STAGES_OF_TENSOR
from .megatron_cases import mesh_of as cut_mesh

LAST, MIDDLE, FIRST = mesh_of(3, 1), mesh_of(1, 2), mesh_of(0, 2)
"""One rank, and pairs of them, of which the first begins at the world's rank 0."""
PARTS = {"one rank": LAST, "two ranks": MIDDLE}


def sums_go_over_the_data_axis(world: World, folder: Path) -> None:
    """Ranks along `tensor` hold the same rows: 0 and 2 are one axis, 1 and 3 the other."""
    cut, part, model = mesh_of(0, 2, tensor=2), mesh_of(1, 2), mesh_of(2, 1, tensor=2)
    contexts = make_contexts([cut, part, model, cut], world)
    held = [mesh for mesh in (cut, part, model) if world.rank in mesh.ranks]
    assert list(contexts) == held
    whole = contexts[cut]
    assert (whole.rank, whole.size, whole.data_size) == (world.rank, 4, 2)
    assert dist.get_process_group_ranks(whole.group) == [0, 1, 2, 3]
    value = torch.tensor([10.0**world.rank])
    assert whole.sum(value).tolist() == ([101.0] if world.rank % 2 == 0 else [1010.0])
    assert whole.max(value).tolist() == [10.0 ** (world.rank % 2 + 2)]
    assert value.tolist() == [10.0**world.rank]
    if part in contexts:
        assert contexts[part].is_first == (world.rank == 1)
        assert contexts[part].sum(value).tolist() == [110.0]
    if model in contexts:
        assert dist.get_process_group_ranks(contexts[model].group) == [2, 3]
        assert contexts[model].sum(value).tolist() == value.tolist(), "one replica"
        dist.all_reduce(value, group=contexts[model].group)
        assert value.tolist() == [1100.0]


def groups_go_along_the_axes(world: World, folder: Path) -> None:
    """Tensor ranks are neighbours, then stages; along an axis of one rank it is alone."""
    cut, part = Mesh(pool="pool", data=1, pipeline=2, tensor=2), mesh_of(1, 2)
    contexts = make_contexts([cut, part], world)
    ranks, whole = dist.get_process_group_ranks, contexts[cut]
    assert ranks(whole.tensor_group) == ([0, 1] if world.rank < 2 else [2, 3])
    assert ranks(whole.pipeline_group) == ([0, 2] if world.rank % 2 == 0 else [1, 3])
    assert ranks(whole.data_group) == [world.rank]
    assert (whole.is_first_stage, whole.is_last_stage) == (world.rank < 2, world.rank >= 2)
    if part in contexts:
        alone = contexts[part]
        assert ranks(alone.tensor_group) == ranks(alone.pipeline_group) == [world.rank]
        assert ranks(alone.data_group) == [1, 2]
        assert alone.is_first_stage and alone.is_last_stage
    if world.rank == 2:  # the others need not be there
        value = torch.ones(1)
        dist.all_reduce(value, group=whole.own_group)
        assert value.tolist() == [1.0]


def groups_may_be_a_stride_apart(world: World, folder: Path) -> None:
    """Tensor groups {0,2} and {1,3}; along `data` the ranks that hold the same part."""
    cut = Mesh(pool="pool", data=2, tensor=2, tensor_stride=2)
    whole, ranks = make_contexts([cut], world)[cut], dist.get_process_group_ranks
    assert ranks(whole.tensor_group) == ([0, 2] if world.rank % 2 == 0 else [1, 3])
    assert ranks(whole.data_group) == ([0, 1] if world.rank < 2 else [2, 3])
    assert (whole.rank, whole.at.data, whole.at.tensor) == (
        world.rank,
        world.rank % 2,
        world.rank // 2,
    )
    value = torch.tensor([10.0**world.rank])
    assert whole.sum(value).tolist() == ([11.0] if world.rank < 2 else [1100.0])
    assert value.tolist() == [10.0**world.rank]


def on_a_part(world: World, folder: Path, mesh: Mesh, check: Callable[[Built, Path], None]) -> None:
    """The mesh's ranks check; the others take part in nothing."""
    place = model_folder("llama", world, folder)
    parallel = part_of(world, mesh)
    if parallel is not None:
        check(Setup(FsdpEngine, mesh).build_on(place, parallel), place)


def models_are_saved(world: World, folder: Path, mesh: Mesh) -> None:
    """Also where the mesh's first rank, which writes, is not the world's."""
    on_a_part(world, folder, mesh, lambda built, _: check_saved_models(built, folder))


def trained(place: Path, setup: Setup, parallel: ParallelContext, updates: int) -> Built:
    built = setup.build_on(place, parallel)
    built.engine.use_optimizer(settings())
    update(built, updates)
    return built


def update(built: Built, times: int) -> list[float]:
    return [built.train() for _ in range(times)]


def a_rank_may_be_in_two_meshes(world: World, folder: Path) -> None:
    """Rank 1 holds a part of both models, and takes their updates in turns."""
    place = model_folder("llama", world, folder)
    parts = make_contexts([FIRST, MIDDLE], world)
    models = [trained(place, Setup(FsdpEngine, mesh), on, 0) for mesh, on in parts.items()]
    for _ in range(2):
        for model in models:
            update(model, 1)
    if world.rank == 1:
        assert_same_weights(*models)
    else:
        for model in models:
            whole_weights(model)  # gathering needs all ranks of a mesh


def weights_come_from_a_saved_model(world: World, folder: Path) -> None:
    """From one part of the world to another one of another size."""
    place, saved = model_folder("llama", world, folder), folder / "saved"
    contexts = make_contexts([LAST, FIRST], world)
    last, first = (Setup(FsdpEngine, mesh) for mesh in (LAST, FIRST))
    if LAST in contexts:
        trained(place, last, contexts[LAST], 2).engine.save(saved, torch.float32)
    dist.barrier()
    if FIRST in contexts:
        critic = first.build_on(place, contexts[FIRST], value_head=True)
        critic.engine.load_weights(saved)
        expected = whole_weights(first.build_on(saved, contexts[FIRST]))
        for name, tensor in whole_weights(critic).items():
            is_head = tensor.shape == (1, 128)
            assert torch.equal(tensor, torch.zeros(1, 128) if is_head else expected[name]), name
        assert critic.engine.version == 1


def what_was_saved_goes_on_elsewhere(
    world: World, folder: Path, before: Setup, now: Setup, kind: str = "llama"
) -> None:
    """On other ranks, cut otherwise, by another engine, in a pool of another name, beside another
    pool's part."""
    place, address = model_folder(kind, world, folder), str(folder / "saved")
    contexts = make_contexts([before.mesh, now.mesh], world)

    def made(setup: Setup, updates: int) -> dict[str, Built]:
        parallel = contexts.get(setup.mesh)
        return {} if parallel is None else {"actor": trained(place, setup, parallel, updates)}

    def engines(models: dict[str, Built]) -> dict[str, TrainingEngine]:
        return {role: built.engine for role, built in models.items()}

    old, saver = made(before, 2), Saver(world)
    for pool, models in {"actors": engines(old), "verifiers": {}}.items():
        saver.begin(state_of(models, {}, world), f"{address}/{pool}")
        saver.finish()
        dist.barrier()
    new = made(now, 1)
    restore(engines(new), {}, world, address, "trainers")
    norms = torch.zeros(2, dtype=torch.float64)
    for index, models in enumerate((old, new)):
        for built in models.values():
            assert built.engine.version == 2
            norms[index] = sum(update(built, 2))
            weights = whole_weights(built)
            if built.parallel.is_first:
                torch.save(weights, folder / f"{index}.pt")
    dist.barrier()
    dist.all_reduce(norms, op=dist.ReduceOp.MAX)
    assert abs(float(norms[0] - norms[1])) < 1e-5 * float(norms[0]), norms
    one, other = (torch.load(folder / f"{index}.pt") for index in range(2))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def fsdp(mesh: Mesh) -> Setup:
    return Setup(FsdpEngine, mesh)


def megatron(mesh: Mesh, shares: bool) -> Setup:
    return Setup(MegatronEngine, mesh, {"sharding": ShardingOptions(distributed_optimizer=shares)})


MOVES: dict[str, tuple[Setup, Setup, str]] = {
    "one rank, then two": (fsdp(LAST), fsdp(FIRST), "llama"),
    "two ranks, then two others": (fsdp(FIRST), fsdp(MIDDLE), "llama"),
    "two ranks, then one": (fsdp(MIDDLE), fsdp(LAST), "llama"),
    "FSDP on two ranks, then stages of tensor ranks": (
        fsdp(FIRST),
        megatron(STAGES_OF_TENSOR, False),
        "qwen2",
    ),
    "replicas of tensor ranks that share, then FSDP on one": (
        megatron(REPLICAS_OF_TENSOR, True),
        fsdp(LAST),
        "qwen2",
    ),
    "replicas of stages that share, then stages of tensor ranks": (
        megatron(cut_mesh(2, 2, 1), True),
        megatron(STAGES_OF_TENSOR, True),
        "llama",
    ),
    "a tied model's stages, then replicas that share": (
        megatron(cut_mesh(2, 2, 1), True),
        megatron(cut_mesh(4, 1, 1), True),
        "tied",
    ),
}
"""How a role is trained before a checkpoint and after it, and which model."""


SCENARIOS: dict[str, Scenario] = {
    "sums go over the data axis": sums_go_over_the_data_axis,
    "groups go along the axes": groups_go_along_the_axes,
    "groups may be a stride apart": groups_may_be_a_stride_apart,
    **{
        f"{name} ({part})": partial(on_a_part, mesh=mesh, check=check)
        for part, mesh in PARTS.items()
        for name, check in {
            "outputs equal Hugging Face's": check_outputs,
            "updates are those of plain torch": check_updates,
        }.items()
    },
    **{
        f"models are saved ({part})": partial(models_are_saved, mesh=mesh)
        for part, mesh in PARTS.items()
    },
    "a rank may be in two meshes": a_rank_may_be_in_two_meshes,
    "weights come from a saved model": weights_come_from_a_saved_model,
    **{
        f"what was saved goes on elsewhere ({name})": partial(
            what_was_saved_goes_on_elsewhere, before=before, now=now, kind=kind
        )
        for name, (before, now, kind) in MOVES.items()
    },
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
