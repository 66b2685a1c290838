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

from rlhf_api.plan import Mesh
from rlhf_runtime.checkpoint.saver import Saver
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.parallel import ParallelContext, make_contexts
from rlhf_runtime.engines.training import LossTerm
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.saving import restore, state_of

from ..meshes import mesh_of, part_of
from ..world_of_processes import Scenario, run_scenarios
from .fsdp_ranks import (
    LANGUAGE,
    assert_same_weights,
    check_outputs,
    check_saved_models,
    check_updates,
    cross_entropy,
    full,
    mine,
    model_folder,
    settings,
    weights,
)

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
    assert whole.sum_over_mesh(value).tolist() == [1111.0]
    assert value.tolist() == [10.0**world.rank]


def on_a_part(
    world: World, folder: Path, mesh: Mesh, check: Callable[[Path, ParallelContext], None]
) -> None:
    """The mesh's ranks check; the others take part in nothing."""
    place = model_folder("llama", world, folder)
    parallel = part_of(world, mesh)
    if parallel is not None:
        check(place, parallel)


def models_are_saved(world: World, folder: Path, mesh: Mesh) -> None:
    """Also where the mesh's first rank, which writes, is not the world's."""
    on_a_part(world, folder, mesh, partial(check_saved_models, folder=folder))


def trained(place: Path, parallel: ParallelContext, updates: int) -> FsdpEngine:
    model = FsdpEngine(place, parallel, torch.float32)
    model.use_optimizer(settings())
    update(model, updates)
    return model


def update(model: FsdpEngine, times: int) -> list[float]:
    terms = [LossTerm(LANGUAGE, mine(model, 40), cross_entropy)]
    return [model.update(terms) for _ in range(times)]


def a_rank_may_be_in_two_meshes(world: World, folder: Path) -> None:
    """Rank 1 holds a part of both models, and takes their updates in turns."""
    place = model_folder("llama", world, folder)
    parts = make_contexts([FIRST, MIDDLE], world)
    models = [trained(place, parallel, 0) for parallel in parts.values()]
    for _ in range(2):
        for model in models:
            update(model, 1)
    if world.rank == 1:
        assert_same_weights(*models)
    else:
        for model in models:
            weights(model)  # gathering needs all ranks of a mesh


def weights_come_from_a_saved_model(world: World, folder: Path) -> None:
    """From one part of the world to another one of another size."""
    place, saved = model_folder("llama", world, folder), folder / "saved"
    contexts = make_contexts([LAST, FIRST], world)
    if LAST in contexts:
        trained(place, contexts[LAST], 2).save(saved, torch.float32)
    dist.barrier()
    if FIRST in contexts:
        critic = FsdpEngine(place, contexts[FIRST], torch.float32, value_head=True)
        critic.load_weights(saved)
        given = FsdpEngine(saved, contexts[FIRST], torch.float32)
        expected, version = weights(given), critic.version
        for name, tensor in weights(critic).items():
            is_head = tensor.shape == (1, 128)
            assert torch.equal(tensor, torch.zeros(1, 128) if is_head else expected[name]), name
        assert version == 1


def what_was_saved_goes_on_elsewhere(world: World, folder: Path, before: Mesh, now: Mesh) -> None:
    """On other ranks, cut otherwise, in a pool of another name, beside another pool's part."""
    place, address = model_folder("llama", world, folder), str(folder / "saved")
    contexts = make_contexts([before, now], world)
    old = {"actor": trained(place, contexts[before], 2)} if before in contexts else {}
    saver = Saver(world)
    for pool, models in {"actors": old, "verifiers": {}}.items():
        saver.begin(state_of(models, {}, world), f"{address}/{pool}")
        saver.finish()
        dist.barrier()
    new = {"actor": trained(place, contexts[now], 1)} if now in contexts else {}
    restore(new, {}, world, address, "trainers")
    norms = torch.zeros(2, dtype=torch.float64)
    for index, models in enumerate((old, new)):
        for model in models.values():
            assert model.version == 2
            norms[index] = sum(update(model, 2))
            torch.save([full(each) for each in weights(model).values()], folder / f"{index}.pt")
    dist.barrier()
    dist.all_reduce(norms, op=dist.ReduceOp.MAX)
    assert abs(float(norms[0] - norms[1])) < 1e-5, norms
    one, other = (torch.load(folder / f"{index}.pt") for index in range(2))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))


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
    "what was saved goes on elsewhere (one rank, then two)": partial(
        what_was_saved_goes_on_elsewhere, before=LAST, now=FIRST
    ),
    "what was saved goes on elsewhere (two ranks, then two others)": partial(
        what_was_saved_goes_on_elsewhere, before=FIRST, now=MIDDLE
    ),
    "what was saved goes on elsewhere (two ranks, then one)": partial(
        what_was_saved_goes_on_elsewhere, before=MIDDLE, now=LAST
    ),
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
