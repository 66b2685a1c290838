"""Scenarios of generation groups within a larger world, for test_transition: run on four ranks, or
on one.

Run as `python -m tests.rlhf_runtime.roles.transition_ranks RANK WORLD_SIZE FOLDER`. The oracle is
Hugging Face's model, whose weights change as the trainer's do.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from vllm.distributed import parallel_state

from rlhf_api.mesh import Mesh, union_ranks
from rlhf_api.plan import GraphName
from rlhf_api.spec.models import TrainingEngineType
from rlhf_planner.memory.engine_groups import TrainedModel, kept_bytes, weight_bytes
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.megatron.engine import MegatronEngine
from rlhf_runtime.engines.parallel import ParallelContext, RankGroup, make_rank_groups
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import StaleWeights
from rlhf_runtime.reshard.slices import TensorSlice, uncovered
from rlhf_runtime.reshard.views import View, Views
from rlhf_runtime.roles.weight_sync import WeightSync, WeightVersion
from rlhf_runtime.workers.process import resident_bytes
from rlhf_sizing.config import shape_from_config

from ..engines.greedy import greedy_answers
from ..engines.tiny_models import END, ragged, write_model
from ..meshes import part_of
from ..world_of_processes import Scenario, run_scenarios
from .transition_cases import COPIES, ENDS, UNCUT, Case, cases, names
from .wake_order import SCENARIOS as OF_WAKING

PROMPT_LENGTHS = [1, 5, 9, 40]
MAX_RESPONSE = 6
STOPS = (END, *range(200, 220))
MEBIBYTE = 1 << 20
CACHE_BYTES = 64 * MEBIBYTE
WEIGHT_VERSION = WeightVersion(GraphName.STEP, 1, 0)
CPU = torch.device("cpu")
ENGINES: Mapping[TrainingEngineType, Callable[..., TrainingEngine]] = {
    TrainingEngineType.FSDP: FsdpEngine,
    TrainingEngineType.MEGATRON: MegatronEngine,
}


class HeldViews:
    """A trainer, or an engine, that is nothing but its storage."""

    def __init__(self, views: Views) -> None:
        self.version: int | None = 0
        self._views = views

    def views(self) -> Views:
        return self._views

    def move(self) -> None:
        """Have the same weights elsewhere."""
        self._views = {
            name: [View(tensor.clone(), box) for tensor, box in parts]
            for name, parts in self._views.items()
        }

    def publish(self, version: int) -> None:
        self.version = version

    def restore(self) -> None:
        self.version = None

    def require_loaded(self) -> None: ...


class Setting:
    """A trainer, its engine, and the model that both should be."""

    def __init__(
        self,
        world: World,
        folder: Path,
        case: Case,
        parallel: ParallelContext | None,
        ranks: RankGroup,
    ) -> None:
        self.case, self.ranks = case, ranks
        place = folder / "model"
        make = ENGINES[case.engine]
        self.trainer: Any = None if parallel is None else make(place, parallel, torch.float32)
        generates = world.rank in case.engines.ranks
        self.at = Coordinates.in_mesh(world.rank, case.engines) if generates else None
        self.engine = VllmEngine(settings(folder, case.engines), world) if generates else None
        self.generator = None if self.engine is None else BatchGenerator(self.engine)
        source = {} if self.trainer is None else self.trainer.views()
        self.weight_sync = WeightSync(self.trainer, source, self.engine, ranks)
        self.model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()

    @torch.no_grad()
    def change_weights(self, seed: int) -> None:
        """Move every weight at random: the model's, and the trainer's parts of it likewise."""
        views = {} if self.trainer is None else self.trainer.views()
        for name, parameter in self.model.named_parameters():
            draw = torch.Generator().manual_seed(zlib.crc32(f"{name} {seed}".encode()))
            change = torch.randn(parameter.shape, generator=draw) * 0.05
            parameter.add_(change)
            for tensor, box in views.get(name, ()):
                tensor.add_(change[box.slices_in(TensorSlice.full(change.shape))].to(tensor.device))
        if self.trainer is not None:
            self.trainer._version += 1

    def prompts(self) -> Column:
        """Of this rank's engine; others answer other ones, and as many as their number says."""
        assert self.at is not None
        return ragged(PROMPT_LENGTHS[self.at.data :], seed=self.at.data)

    def generate(self, temperature: float) -> list[list[int]]:
        assert self.at is not None and self.generator is not None
        prompts = self.prompts()
        seeds = [1000 * self.at.data + row for row in range(prompts.num_rows)]
        assert self.engine is not None and self.engine.version is not None
        sampling = Sampling(temperature, seeds)
        made = self.generator.generate(prompts, sampling, self.engine.version, MAX_RESPONSE)
        return [run.tolist() for run in made.tokens.runs()]

    def bytes_needed(self) -> int:
        """Of what this rank generates with and does not train."""
        held = {} if self.trainer is None else self.trainer.views()
        elements = 0
        for name, parts in ({} if self.engine is None else self.engine.views()).items():
            own = [view.box for view in held.get(name, ())]
            elements += sum(rest.volume for part in parts for rest in uncovered(part.box, own))
        return 4 * elements

    def bytes_planned(self) -> int:
        """Of all ranks: what the planner chose these groups by."""
        shape = shape_from_config(self.model.config.to_dict(), "the model", "")
        trained = TrainedModel(shape, self.case.training, 4, self.case.engine, self.case.engines)
        return weight_bytes(trained, self.case.engines) - kept_bytes(trained, self.case.engines)


def assert_groups_have_our_time_limit(world: World) -> None:
    for made in (parallel_state.get_tp_group(), parallel_state.get_world_group()):
        for group, device in ((made.cpu_group, CPU), (made.device_group, world.device)):
            assert group._get_backend(device).options._timeout == world.timeout


def settings(folder: Path, engines: Mesh) -> EngineSettings:
    return EngineSettings(
        folder=folder / "model",
        dtype="float32",
        groups=engines.tensor_groups,
        kv_cache_bytes=CACHE_BYTES,
        memory_bytes=2 * CACHE_BYTES,
        max_sequence_tokens=max(PROMPT_LENGTHS) + MAX_RESPONSE,
        max_concurrent_sequences=16,
        block_tokens=32,
        stop_token_ids=STOPS,
        world=f"test-{folder.parent.name}-{folder.name}",
    )


def engines_follow_the_trainer(world: World, folder: Path, case: Case) -> None:
    """Through two updates, and after their memory was given back. Ranks that only train go on with
    the next update while others generate."""
    if world.rank == 0:
        write_model(case.model, folder / "model")
    dist.barrier()
    parallel = part_of(world, case.training)
    together = union_ranks(case.training, case.engines)
    ranks = make_rank_groups([together], world).get(together)
    if ranks is None:
        return
    at = Setting(world, folder, case, parallel, ranks)
    try:
        assert int(ranks.sum(torch.tensor(at.bytes_needed()))) == at.bytes_planned()
        for seed in range(2):
            at.change_weights(seed)
            weight_version = WeightVersion(GraphName.STEP, 1, seed)
            if at.engine is not None:
                assert at.engine.views().keys() == dict(at.model.named_parameters()).keys()
                assert_groups_have_our_time_limit(world)
                with pytest.raises(StaleWeights):
                    at.weight_sync.current_version(weight_version)
            came = torch.tensor([time.time()], dtype=torch.float64)
            moved = at.weight_sync.sync(weight_version).means["throughput/transition_bytes"]
            assert at.weight_sync.began >= float(ranks.max(came))
            assert moved == (at.bytes_needed(), 1 / ranks.size), case
            assert not at.weight_sync.sync(weight_version).means
            if at.engine is not None:
                at.weight_sync.current_version(weight_version)
                assert at.generate(0.0) == greedy_answers(
                    at.model, at.prompts(), STOPS, MAX_RESPONSE
                )
        if at.engine is None:
            assert at.weight_sync.sync(weight_version).means  # others have given theirs back
            return
        sampled = at.generate(1.0)
        assert_samples_are_those_of_other_groups(at, sampled, folder.parent)
        give_memory_back(at, world.device)
        at.weight_sync.sync(weight_version)
        assert at.generate(1.0) == sampled
    finally:
        if at.engine is not None:
            at.engine.close()


def assert_samples_are_those_of_other_groups(
    at: Setting, sampled: list[list[int]], place: Path
) -> None:
    """An engine's samples depend on its prompts, their seeds and the number of its ranks only."""
    assert len({tuple(tokens) for tokens in sampled}) == at.prompts().num_rows
    case = at.case
    assert at.at is not None
    file = place / f"{case.model}-{case.engines.tensor}-{at.at.data}-{at.at.tensor}.json"
    if file.exists():
        assert json.loads(file.read_text()) == sampled
    file.write_text(json.dumps(sampled))


def give_memory_back(at: Setting, device: torch.device) -> None:
    """That of the weights, and the cache's, which shows in the process's or the device's."""
    engine = at.engine
    assert engine is not None
    for cache in engine._runner.kv_caches:  # every page is in use
        torch.empty(0, dtype=torch.uint8, device=device).set_(cache.untyped_storage()).zero_()
    before = used_bytes(device)
    held = [view.tensor for views in engine.views().values() for view in views]
    engine.release()
    assert device != CPU or all(tensor.untyped_storage().nbytes() == 0 for tensor in held)
    assert used_bytes(device) < before - CACHE_BYTES * 3 // 4


def used_bytes(device: torch.device) -> int:
    """Of this process; on a GPU of all that are on it."""
    if device == CPU:
        return resident_bytes()
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def copies_are_counted_on_both_sides(world: World, folder: Path) -> None:
    """Rows that do not divide, of which the last ranks have none; copies on every side; and what is
    wrong on one rank, wherever it is, is found by all."""
    everyone = (0, 1, 2, 3)
    ranks = make_rank_groups([everyone], world)[everyone]
    whole = {name: torch.randn(shape) for name, shape in ENDS.items()}
    for tensor in whole.values():
        dist.broadcast(tensor, 0)
    for sources, targets in (("rows", "copies"), ("some", "rows"), ("copies", "halves")):
        trainer = HeldViews(views_of(whole, UNCUT[sources], world.rank))
        target = views_of(whole, UNCUT[targets], world.rank)
        for (tensor, _), *_ in target.values():
            tensor.zero_()
        engine = HeldViews(target)
        weight_sync = WeightSync(trainer, trainer.views(), engine, ranks)  # type: ignore[arg-type]
        assert weight_sync.sync(WEIGHT_VERSION).means
        for name, parts in engine.views().items():
            for tensor, box in parts:
                assert torch.equal(tensor, whole[name][box.slices_in(TensorSlice.full(ENDS[name]))])
        spoil(weight_sync, engine, world.rank)
        trainer.version += 1
        with pytest.raises(StaleWeights, match="for 1 of 2 tensors, the first norm"):
            weight_sync.sync(WEIGHT_VERSION)
        trainer.move()
        with pytest.raises(StaleWeights, match="got other storage for embedding than when"):
            weight_sync.sync(WEIGHT_VERSION)


def spoil(weight_sync: WeightSync, engine: HeldViews, rank: int) -> None:
    """Let what arrives of one tensor on the first rank that has some of it be wrong."""
    run = weight_sync._transfer.run

    def corrupting() -> object:
        moved = run()
        if rank == 0:
            engine.views()["norm"][0].tensor[0] += 1e-3
        return moved

    weight_sync._transfer.run = corrupting  # type: ignore[method-assign,assignment]


def views_of(
    whole: Mapping[str, torch.Tensor], held: Mapping[str, tuple[TensorSlice | None, ...]], rank: int
) -> Views:
    """Storage of a rank's boxes."""
    return {
        name: [View(whole[name][box.slices_in(TensorSlice.full(ENDS[name]))].clone(), box)]
        for name, boxes in held.items()
        if (box := boxes[rank]) is not None
    }


def scenarios(size: int) -> dict[str, Scenario]:
    """Those of a world of so many ranks."""
    following = {
        name: partial(engines_follow_the_trainer, case=case) for name, case in cases(size).items()
    }
    found = {**OF_WAKING, COPIES: copies_are_counted_on_both_sides, **following}
    return {name: found[name] for name in names(size)}


if __name__ == "__main__":
    world_size = int(sys.argv[2])
    run_scenarios(int(sys.argv[1]), world_size, Path(sys.argv[3]), scenarios(world_size))
