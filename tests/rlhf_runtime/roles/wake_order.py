"""Scenarios of test_transition, which every rank plays by itself: an engine wakes for new weights
first, and for its cache when what brought them is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import GenerateOptions
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.engines.vllm.memory import DeviceMemory
from rlhf_runtime.engines.vllm.packed_weights import PackedWeights
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import StaleWeights
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views
from rlhf_runtime.roles.generation import Generation
from rlhf_runtime.roles.weight_sync import WeightSync, WeightVersion

from ..world_of_processes import Scenario
from .transition_cases import WAKING

NAME, WHOLE = "weight", TensorSlice.full((4,))


class Core:
    """vLLM's engine core on a GPU, as far as memory goes: notes what is asked of it, and loses
    contents as sleep does."""

    batch_queue = None
    scheduler = SimpleNamespace(has_requests=lambda: False)

    def __init__(self) -> None:
        self.weights = torch.zeros(4)
        self.notes: list[str] = []

    def sleep(self, level: int) -> None:
        self.notes.append(f"sleep {level}")
        self.weights.fill_(torch.nan)

    def wake_up(self, parts: list[str]) -> None:
        self.notes.extend(f"wake {part}" for part in parts)

    def reset_prefix_cache(self) -> bool:
        self.notes.append("forget prompts")
        return True


class Trainer:
    """One weight, which updates change."""

    version = 0

    def __init__(self) -> None:
        self.weights = torch.zeros(4)

    def views(self) -> Views:
        return {NAME: [View(self.weights, WHOLE)]}

    def require_loaded(self) -> None: ...

    def update(self) -> None:
        self.weights += 1
        self.version += 1


class Engine(VllmEngine):
    """The real one, over such a core."""

    def __init__(self, core: Core) -> None:
        self._core, self._running = core, {}
        self._memory = DeviceMemory(core)
        self._packed = PackedWeights(())
        self._version = None

    def views(self) -> Views:
        return {NAME: [View(self._core.weights, WHOLE)]}


class Role:
    """A generation on one rank, of whose engine only the core is not the real one."""

    def __init__(self) -> None:
        self.core, self.trainer = Core(), Trainer()
        self.engine = Engine(self.core)
        one: Any = RankGroup(0, 1, None)  # type: ignore[arg-type]
        trainer: Any = self.trainer
        self.weight_sync = WeightSync(trainer, trainer.views(), self.engine, one)
        self.generation = Generation.__new__(Generation)
        self.generation._generation_engine = self.engine
        self.generation._weight_sync = self.weight_sync
        rollout = SimpleNamespace(temperature=1.0)
        job = SimpleNamespace(spec=SimpleNamespace(rollout=rollout))
        self.generation._context = SimpleNamespace(job=job)  # type: ignore[assignment]
        self._note("run", "transfer")
        self._note("release", "free the bucket")

    def _note(self, name: str, note: str) -> None:
        """When the transfer does something."""
        transfer = self.weight_sync._transfer
        run = getattr(transfer, name)

        def noting() -> Any:
            self.core.notes.append(note)
            return run()

        setattr(transfer, name, noting)

    def notes(self) -> list[str]:
        """What was noted since this was asked last."""
        noted, self.core.notes = self.core.notes, []
        return noted

    def sync(self, changes: int) -> None:
        self.weight_sync.sync(WeightVersion(GraphName.STEP, 1, changes))

    def sample(self) -> None:
        """Nothing, which takes the cache all the same."""
        assert self.engine.version is not None
        generator = BatchGenerator(self.engine)
        generator.generate(pack([], np.int32), Sampling(1.0, []), self.engine.version, 1)


WAKEN = ["wake weights", "transfer", "free the bucket"]
GENERATING = ["wake kv_cache", "forget prompts"]


def weights_wake_and_come_before_the_cache(world: World, folder: Path) -> None:
    role = Role()
    for changes in range(2):
        role.engine.release()
        role.engine.release()
        role.trainer.update()
        assert role.notes() == ["sleep 2"]
        role.sync(changes)
        assert role.notes() == WAKEN, "the cache sleeps on"
        assert torch.equal(role.core.weights, role.trainer.weights)
        role.sync(changes)
        assert role.notes() == [], "the weights are there"
        role.sample()
        assert role.notes() == GENERATING
        role.sample()
        assert role.notes() == GENERATING[1:], "awake already"


def an_engine_that_never_slept_wakes_for_nothing(world: World, folder: Path) -> None:
    role = Role()
    role.sync(0)
    role.sample()
    assert role.notes() == [*WAKEN[1:], *GENERATING[1:]]


def the_cache_sleeps_on_where_weights_are_stale(world: World, folder: Path) -> None:
    role = Role()
    role.sync(0)
    role.engine.release()
    role.notes()
    call = SimpleNamespace(options=GenerateOptions(samples=1, greedy=False))
    inputs: Any = SimpleNamespace(call=call, graph=GraphName.STEP, step=1, num_weight_changes=0)
    with pytest.raises(StaleWeights, match="got none"):
        role.generation.generate(inputs)
    assert role.notes() == []


SCENARIOS: dict[str, Scenario] = dict(
    zip(
        WAKING,
        (
            weights_wake_and_come_before_the_cache,
            an_engine_that_never_slept_wakes_for_nothing,
            the_cache_sleeps_on_where_weights_are_stale,
        ),
        strict=True,
    )
)
