"""Scenarios of checkpoints that are saved under one layout and loaded under others, for
test_layouts: run on four ranks. The oracle are full tensors that every rank makes for itself."""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from rlhf_runtime.checkpoint.saver import Saver, load
from rlhf_runtime.engines.parallel import make_contexts
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed
from rlhf_runtime.reshard.local_shards import LocalShards
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice
from rlhf_runtime.reshard.views import View
from rlhf_runtime.roles.saving import restore, state_of

from ...depth import sample
from ..world_of_processes import Scenario, run_scenarios
from .layout_cases import FSDP, LAYOUTS, SCENARIOS
from .layout_holders import MOMENTS, hold, parts_in, write_model

Expected = dict[tuple[str, str], torch.Tensor]
"""Full tensors by kind and name."""


@cache
def holders(world: World, folder: Path) -> dict[str, Any]:
    """What this rank holds in each layout that it is part of; made once for all scenarios."""
    if world.rank == 0:
        write_model(folder / "model")
    dist.barrier()
    contexts = make_contexts([layout.mesh for layout in LAYOUTS.values()], world)
    return {
        name: hold(folder / "model", contexts[layout.mesh], layout.kind)
        for name, layout in LAYOUTS.items()
        if layout.mesh in contexts
    }


@cache
def expected(folder: Path) -> Expected:
    draw = torch.Generator().manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    return {
        (kind, name): torch.randn(tensor.shape, generator=draw)
        for kind in ("weights", *MOMENTS)
        for name, tensor in model.named_parameters()
    }


def part(full: torch.Tensor, box: TensorSlice) -> torch.Tensor:
    return full[box.slices_in(TensorSlice.full(tuple(full.shape)))]


@torch.no_grad()
def fill(state: dict[str, Any], full: Expected | None) -> None:
    """Give a state its values, or none."""
    for key, views in parts_in(state).items():
        for tensor, box in views:
            tensor.copy_(torch.full(box.shape, torch.nan) if full is None else part(full[key], box))
    for moments in state["optimizer"]["adam"].values():
        moments["step"].fill_(0 if full is None else 7)


def a_checkpoint_is_that_of_any_layout(world: World, folder: Path, saved: str) -> None:
    """Weights, moments and counts; a rank reads what it holds, and saving changes nothing."""
    held, full = holders(world, folder.parent), expected(folder.parent)
    names = {name for _, name in full}
    own = {"actor": held[saved]} if saved in held else {}
    for engine in own.values():
        engine.expect_state(names)
        fill(engine.state(), full)
        engine.adopt({"version": 9, "optimizer": {"updates": 7}})
    saver, address = Saver(world), str(folder / "saved")
    saver.begin(state_of(own, {}, world), f"{address}/pool")
    for engine in own.values():
        fill(engine.state(), None)  # while it is written
    saver.finish()
    dist.barrier()
    wrong = []
    for layout in sample(list(LAYOUTS).index(saved), list(LAYOUTS), 5):
        kind = LAYOUTS[layout].kind
        if layout != saved and kind == LAYOUTS[saved].kind == FSDP:
            continue  # scenarios of meshes do
        here = {"actor": held[layout]} if layout in held else {}
        for engine in here.values():
            fill(engine.state(), None)
            engine.adopt({"version": 0, "optimizer": {"updates": 0}})
        restore(here, {}, world, address, "pool")
        wrong += [f"{layout}: {each}" for e in here.values() for each in differences(e, full)]
    assert not wrong, wrong


def differences(engine: Any, full: Expected) -> list[str]:
    """What of an engine is not as it should be. Ranks tell at the end: others would wait."""
    state = engine.state()
    adam, held = state["optimizer"]["adam"], parts_in(state)
    wrong = [
        f"{kind} {name} {box}"
        for (kind, name), views in held.items()
        for tensor, box in views
        if not torch.equal(tensor, part(full[kind, name], box))
    ]
    wrong += [f"{kind} lack a weight" for kind in MOMENTS if len(held) != 3 * len(adam)]
    wrong += [f"step of {name}" for name, moments in adam.items() if float(moments["step"]) != 7]
    counts = (state["version"], state["optimizer"]["updates"])
    return [*wrong, *([] if counts == (9, 7) else [f"counts {counts}"])]


def shards_of(
    world: World, boxes: list[TensorSlice], is_saved: bool = True
) -> dict[str, LocalShards]:
    """This rank's box of rows, filled with its number."""
    box = boxes[world.rank]
    tensor = torch.full(box.shape, float(world.rank))
    return {"w": LocalShards((8, 3), [View(tensor, box)], is_saved)} if box.volume else {}


def written(world: World, folder: Path, state: dict[str, Any]) -> str:
    saver, address = Saver(world), str(folder / "saved")
    saver.begin([state], address)
    saver.finish()
    dist.barrier()
    return address


def boxes_that_overlap_partially_are_refused(world: World, folder: Path) -> None:
    boxes = [TensorSlice((first, 0), (3, 3)) for first in (0, 2, 4, 5)]
    try:
        written(world, folder, shards_of(world, boxes))
    except CheckpointFailed as error:
        assert "overlapping chunks" in str(error), error
    else:
        raise AssertionError("rows 2, 4 and 5 to 6 were saved twice")
    dist.barrier()


def a_region_that_nobody_holds_is_told(world: World, folder: Path) -> None:
    boxes = [TensorSlice((first, 0), (2, 3)) for first in (0, 2, 4, 4)]
    try:
        written(world, folder, shards_of(world, boxes))
    except CheckpointFailed as error:
        assert "invalid fill" in str(error), error
    else:
        raise AssertionError("rows 6 and 7 were not saved, and nobody noticed")
    dist.barrier()


def what_another_rank_saves_is_left_to_it(world: World, folder: Path) -> None:
    """Rank 3 has rows of 1 and 2 as copies, cut otherwise; rank 0 has none. All read theirs."""
    boxes = [
        TensorSlice((0, 0), (0, 3)),
        shard_slice((8, 3), 0, 0, 2),
        shard_slice((8, 3), 0, 1, 2),
        TensorSlice((3, 0), (4, 3)),
    ]
    shards = shards_of(world, boxes, is_saved=world.rank != 3)
    address = written(world, folder, shards)
    for each in shards.values():
        each.views[0].tensor.fill_(-1)
    load(dict(shards), address)
    rows = torch.tensor([1.0] * 4 + [2.0] * 4)[:, None].expand(8, 3)
    for each in shards.values():
        for tensor, box in each.views:
            assert torch.equal(tensor, part(rows, box))


if __name__ == "__main__":
    scenarios: dict[str, Scenario] = {
        name: partial(globals()[function], **options)
        for name, (function, options) in SCENARIOS.items()
    }
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), scenarios)
