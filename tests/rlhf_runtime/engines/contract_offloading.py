"""Every training engine leaves its device and comes back."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from rlhf_api.plan import OffloadDepth
from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.host_memory import give_free_pages_back
from rlhf_runtime.engines.training import (
    TrainingEngine,
)
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import NotLoaded
from rlhf_runtime.reshard.local_shards import LocalShards

from .contract_setup import (
    LANGUAGE,
    Built,
    Setup,
    log_probs_of,
    model_folder,
    settings,
)
from .used_memory import used_bytes

DEPTHS = (OffloadDepth.DERIVED, OffloadDepth.EVERYTHING)


def offloading_changes_nothing(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Not a bit, wherever it is done; what holds views sees what comes afterwards."""
    place = model_folder(kind, world, folder)
    moved, stays = (setup.build(place, world, torch.bfloat16) for _ in range(2))
    held = moved.engine.views(), moved.engine.master_views()
    there_and_back(moved, OffloadDepth.DERIVED)
    there_and_back(moved, OffloadDepth.EVERYTHING)
    for built in (moved, stays):
        built.engine.use_optimizer(settings())
    for before, after in itertools.permutations(DEPTHS):
        there_and_back(moved, before)
        log_probs = [log_probs_of(built) for built in (moved, stays)]
        assert not moved.reads or torch.equal(*log_probs)
        there_and_back(moved, after)
        norms = [built.train() for built in (moved, stays)]
        assert norms[0] == norms[1]
    there_and_back(moved, OffloadDepth.DERIVED)
    assert_same_bits(moved.engine.state(), stays.engine.state())
    for before, now in zip(held, (stays.engine.views(), stays.engine.master_views()), strict=True):
        for name, views in now.items():
            for one, other in zip(before[name], views, strict=True):
                assert torch.equal(one.tensor, other.tensor), name
    assert moved.engine.version == stays.engine.version == 2


def there_and_back(built: Built, depth: OffloadDepth) -> None:
    """From the device, where nothing is left of what leaves, and back."""
    engine = built.engine
    before = dict(engine.bytes_on_device())
    for _ in range(2):  # twice is as good as once
        engine.offload(depth)
    assert engine.offloaded is depth
    leaves = what_leaves(engine, depth)
    assert engine.bytes_on_device() == {w: 0 if w in leaves else size for w, size in before.items()}
    is_there = {tensor.untyped_storage().nbytes() > 0 for tensor in distinct_storages(engine)}
    assert is_there == {not leaves}
    for use in (engine.require_loaded, engine.views, engine.master_views, engine.state):
        with pytest.raises(NotLoaded, match="allowed calls after a load; the plan lacks a load"):
            use()
    with pytest.raises(NotLoaded):
        built.engine.infer([], LANGUAGE, lambda outputs, part: None)
    with pytest.raises(NotLoaded):
        built.engine.save(Path("nowhere"), torch.float32)
    for _ in range(2):
        engine.load()
    assert engine.offloaded is OffloadDepth.NOTHING and engine.bytes_on_device() == before


def what_leaves(engine: TrainingEngine, depth: OffloadDepth) -> Collection[MemoryUse]:
    """Of what an engine trains in bfloat16. For FSDP weights are their own masters."""
    if depth is OffloadDepth.EVERYTHING:
        return list(MemoryUse)
    return () if isinstance(engine, FsdpEngine) else (MemoryUse.WEIGHTS,)


def distinct_storages(engine: TrainingEngine) -> list[torch.Tensor]:
    """Tensors of all parameters on this rank."""
    module = engine.module if isinstance(engine, FsdpEngine) else engine.stage  # type: ignore
    return [p.to_local() if isinstance(p, DTensor) else p for p in module.parameters()]


def assert_same_bits(one: Any, other: Any) -> None:
    """Of two states."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_bits(one[key], other[key])
    elif isinstance(one, LocalShards):
        for mine, theirs in zip(one.views, other.views, strict=True):
            assert torch.equal(mine.tensor, theirs.tensor)
    elif isinstance(one, DTensor):
        assert torch.equal(one.to_local(), other.to_local())
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def offloading_gives_memory_back(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """The memory in use falls by what the engine had on its device, and rises again."""
    place = model_folder("wide", world, folder)
    built = setup.build(place, world)
    used = partial(used_bytes, built.parallel.device)
    built.engine.use_optimizer(settings())
    built.train(max_tokens=1000)
    give_free_pages_back()
    held, before = sum(built.engine.bytes_on_device().values()), used()
    built.engine.offload(OffloadDepth.EVERYTHING)
    offloaded = used()
    assert abs(before - offloaded - held) < 0.15 * held, (before, offloaded, held)
    built.engine.load()
    assert abs(used() - offloaded - held) < 0.15 * held, (used(), held)
    built.engine.offload(OffloadDepth.EVERYTHING)
    assert abs(used() - offloaded) < 0.15 * held
