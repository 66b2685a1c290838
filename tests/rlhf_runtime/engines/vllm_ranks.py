"""Scenarios of generation and of the way there from the trainer, for test_vllm.

Run as `python -m tests.rlhf_runtime.engines.vllm_ranks RANK WORLD_SIZE FOLDER`. The oracle is
Hugging Face on the weights that the trainer saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_runtime.dataplane.columns import Column, pack, repeat_rows
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.parallel import ParallelContext, RankGroup
from rlhf_runtime.engines.response_batch import (
    BatchGenerator,
    Generated,
    ResponseBatch,
    Sampling,
)
from rlhf_runtime.engines.training import ReadLogProbs, TokenOutputs
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.engines.vllm.packed_weights import PackedWeights
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import StaleWeights
from rlhf_runtime.roles.weight_sync import WeightSync, WeightVersion
from rlhf_sizing.limits import BATCHED_TOKENS

from ..meshes import mesh_of, part_of
from ..world_of_processes import DEVICE, Scenario, run_scenarios
from . import response_ends as ends
from . import truncated_sampling as truncated
from .fsdp_ranks import local_weights
from .generation_contract import CONTRACT, EngineUnderTest
from .greedy import greedy_answers
from .response_ends import MAX_PROMPT, MAX_RESPONSE, STOPS, tokens_of
from .tiny_models import (
    GENERATING,
    LAYERS,
    MODELS,
    TEXTLESS,
    TEXTLESS_IDS,
    VOCABULARY,
    ragged,
    write_model,
)
from .used_memory import used_bytes
from .vllm_heads import assert_kernels_are_those_that_plans_take

PROMPT_LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 140, 260, 300]
EXCLUDED = {"qwen2": TEXTLESS}
"""Tokens without a text, by kind of model; their logits are the highest."""
TRUNCATED = ("tied", "qwen2")
"""The kinds of model whose engine records the tokens that truncated sampling keeps."""
UNPACKED = "qwen2"
"""The kind of model whose engine computes with its weights as they are."""
MEBIBYTE = 1 << 20
WEIGHT_VERSION = WeightVersion(GraphName.STEP, 1, 0)


class Pair:
    """A trainer and its engine, with weights that the engine was not built with."""

    def __init__(
        self, kind: str, folder: Path, world: World, parallel: ParallelContext, mesh: Mesh
    ) -> None:
        self.folder, self.parallel, self.kind = folder, parallel, kind
        place = folder / kind
        excluded = EXCLUDED.get(kind, ())
        self.excluded_ids = [token for tokens in excluded for token in tokens]
        self.model = FsdpEngine(place, parallel, torch.float32, excluded_tokens=excluded)
        self.engine = VllmEngine(
            EngineSettings(
                folder=place,
                dtype="float32",
                groups=mesh.tensor_groups,
                kv_cache_bytes=CACHE_BYTES[kind],
                memory_bytes=2 * CACHE_BYTES[kind],
                max_sequence_tokens=MAX_PROMPT + MAX_RESPONSE,
                max_concurrent_sequences=64,
                block_tokens=32,
                stop_token_ids=STOPS,
                share_prompts=kind != "qwen2",
                world=f"test-{folder.parent.name}-{folder.name}",
                excluded_tokens=excluded,
                packs_weights=world.device.type == "cpu" and kind != UNPACKED,
                records_kept_tokens=kind in TRUNCATED,
            ),
            world,
        )
        self.generator = BatchGenerator(self.engine)
        ranks = RankGroup(parallel.rank, parallel.size, parallel.group)
        self.weight_sync = WeightSync(self.model, self.model.views(), self.engine, ranks)

    @torch.no_grad()
    def change_weights(self, seed: int) -> None:
        """Move every parameter at random, as an update does."""
        torch.manual_seed(100 * seed + self.parallel.rank)
        for tensor in local_weights(self.model):
            tensor.add_(torch.randn_like(tensor), alpha=0.05)
        self.model._version += 1

    def prompts(self) -> Column:
        return ragged(PROMPT_LENGTHS, seed=0)

    def generate(self, prompts: Column, temperature: float, seed: int = 0) -> Generated:
        seeds = [1000 * seed + row for row in range(prompts.num_rows)]
        return self.sample(prompts, Sampling(temperature, seeds))

    def sample(self, prompts: Column, sampling: Sampling) -> Generated:
        batch = self.start(prompts, sampling)
        batch.run()
        return batch.generated()

    def start(self, prompts: Column, sampling: Sampling) -> ResponseBatch:
        version = self.weight_sync.current_version(WEIGHT_VERSION)
        return self.generator.start(prompts, sampling, version, MAX_RESPONSE)

    def expected(self, prompts: Column) -> list[list[int]]:
        """Hugging Face's greedy answers with the trainer's present weights."""
        return greedy_answers(self.peer(), prompts, STOPS, MAX_RESPONSE, self.excluded_ids)

    def peer(self) -> PreTrainedModel:
        """Hugging Face's model with the trainer's present weights."""
        place = self.folder / f"version{self.model.version}"
        self.model.save(place, torch.float32)
        dist.barrier(self.parallel.group)
        return AutoModelForCausalLM.from_pretrained(place).eval()

    def assert_greedy_answers_are_right(self) -> None:
        prompts = self.prompts()
        got = self.generate(prompts, 0.0)
        assert tokens_of(got) == self.expected(prompts)


CACHE_BYTES = {kind: 16 * MEBIBYTE for kind in (*MODELS, *GENERATING)} | {"llama": 128 * MEBIBYTE}
PAIRS: dict[str, Pair] = {}
"""By kind of model; the scenarios of a kind share one, in order."""


def greedy_answers_follow_the_trainer(at: Pair) -> None:
    moved = []
    for seed in range(2):
        at.change_weights(seed)
        moved.append(at.weight_sync.sync(WEIGHT_VERSION))
        at.assert_greedy_answers_are_right()
    assert all(statistics.means for statistics in moved)
    assert not at.weight_sync.sync(WEIGHT_VERSION).means, (
        "weights that have not changed are not moved again"
    )


def log_probs_agree_with_the_trainer(at: Pair) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    prompts = repeat_rows(at.prompts(), 3)
    for temperature in (0.7, 1.0):
        got = at.generate(prompts, temperature)
        trainer = torch.full((len(got.tokens.values),), torch.nan)

        def read(outputs: TokenOutputs, part: MicroBatch, into: torch.Tensor = trainer) -> None:
            into[part.tokens] = outputs.values.cpu()

        groups = np.repeat(np.arange(len(PROMPT_LENGTHS)), 3)
        parts = pack_micro_batches(prompts, got.tokens, groups, at.model.packing(4000))
        at.model.infer(parts, ReadLogProbs(temperature), read)
        difference = (trainer - torch.tensor(got.log_probs.values)).abs().max()
        assert difference < 1e-4, (temperature, difference)
        assert len(set(map(tuple, tokens_of(got)))) > 16, "samples of a prompt differ"


def seeds_alone_decide_a_sample(at: Pair) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    prompts = at.prompts()
    everything = tokens_of(at.generate(prompts, 1.0, seed=5))
    assert tokens_of(at.generate(prompts, 1.0, seed=5)) == everything
    assert tokens_of(at.generate(prompts, 1.0, seed=6)) != everything
    some = np.array([11, 2, 7], dtype=np.int64)
    sampling = Sampling(1.0, [5000 + int(row) for row in some])
    alone = at.sample(prompts.take(some), sampling)
    assert tokens_of(alone) == [everything[row] for row in some]


def prompts_of_more_tokens_than_a_step_takes_are_sampled_alike(at: Pair) -> None:
    """The last prompt that a step begins with would be cut, and its generator has to stay as it
    was."""
    at.weight_sync.sync(WEIGHT_VERSION)
    lengths = [MAX_PROMPT] * (1 + BATCHED_TOKENS // MAX_PROMPT)
    prompts = ragged(lengths, seed=0)
    everything = tokens_of(at.generate(prompts, 1.0, seed=5))
    last = len(lengths) - 1
    alone = at.sample(prompts.take(np.array([last])), Sampling(1.0, [5000 + last]))
    assert tokens_of(alone) == everything[last:]


def what_is_left_of_a_response_goes_on_elsewhere(at: Pair) -> None:
    """From the prompt and the tokens so far, or in place, where some engines leave their rows."""
    at.weight_sync.sync(WEIGHT_VERSION)
    prompts, seeds = at.prompts(), [0] * len(PROMPT_LENGTHS)
    expected = at.expected(prompts)
    asked: list[int] = []

    def is_enough(left: int) -> bool:
        asked.append(left)
        return True

    begun = at.start(prompts, Sampling(0.0, seeds))
    begun.run_until(is_enough)
    left = np.flatnonzero(~begun.has_ended)
    assert asked == [len(left)] and 0 < len(left) < len(seeds)
    # On a GPU the last of these steps is still in flight.
    steps = CHECK_STEPS - (at.parallel.device.type == "cuda")
    assert [len(row) for row in expected if len(row) > steps] == [
        len(expected[row]) for row in left
    ], "a token of each row in each step"
    begun.abort()
    so_far = tokens_of(begun.generated())
    assert all(so_far[row] == expected[row] for row in np.flatnonzero(begun.has_ended))
    assert all(so_far[row] == expected[row][:CHECK_STEPS] for row in left)

    asked.clear()
    others = at.start(prompts.take(np.arange(2)), Sampling(0.0, seeds[:2]))
    others.run_until(is_enough)
    runs = prompts.runs()
    rest = pack([[*runs[row], *so_far[row]] for row in left], np.int32)
    most = [MAX_RESPONSE - len(so_far[row]) for row in left]
    others.add(rest, Sampling(0.0, seeds[: len(left)]), most)
    others.run()
    found = tokens_of(others.generated())
    assert found[:2] == expected[:2]
    assert [so_far[row] + found[2 + n] for n, row in enumerate(left)] == [
        expected[row] for row in left
    ]


def answers_end_at_an_end_token_or_the_limit(at: Pair) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    got = at.generate(repeat_rows(at.prompts(), 4), 2.0)
    assert got.log_probs.lengths is not None
    assert (got.log_probs.lengths == got.tokens.lengths).all()
    for tokens, finished in zip(tokens_of(got), got.finished, strict=True):
        assert not set(tokens[:-1]) & set(STOPS)
        assert bool(finished) == (tokens[-1] in STOPS)
        assert finished or len(tokens) == MAX_RESPONSE
    assert 0 < got.finished.sum() < len(got.finished)


def prompts_may_be_as_long_as_the_limit(at: Pair) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    longest = ragged([MAX_PROMPT] * 3, seed=3)
    assert tokens_of(at.generate(longest, 0.0)) == at.expected(longest)
    nothing = at.generate(longest.take(np.empty(0, dtype=np.int64)), 1.0)
    assert nothing.tokens.num_rows == 0


def only_current_weights_generate(at: Pair) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    at.weight_sync.current_version(WEIGHT_VERSION)
    at.change_weights(3)
    with pytest.raises(StaleWeights, match="got version .*, allowed version"):
        at.weight_sync.current_version(WEIGHT_VERSION)
    at.weight_sync.sync(WEIGHT_VERSION)
    at.engine.release()
    with pytest.raises(StaleWeights, match="got none, allowed version"):
        at.weight_sync.current_version(WEIGHT_VERSION)
    at.weight_sync.sync(WEIGHT_VERSION)
    at.weight_sync.current_version(WEIGHT_VERSION)


def released_memory_comes_back_without_a_trace(at: Pair) -> None:
    """Keys and values of 128 MiB: their release must show in the memory in use."""
    device = at.parallel.device
    at.weight_sync.sync(WEIGHT_VERSION)
    prompts = at.prompts()
    greedy, sampled = tokens_of(at.generate(prompts, 0.0)), tokens_of(at.generate(prompts, 1.0))
    cache = [cache.untyped_storage() for cache in at.engine._runner.kv_caches]
    for storage in cache:  # every page is in use
        torch.empty(0, dtype=torch.uint8, device=device).set_(storage).zero_()
    sizes = [storage.nbytes() for storage in cache]
    assert sum(sizes) > 100 * MEBIBYTE
    before = used_bytes(device)
    held = [view.tensor for views in at.engine.views().values() for view in views]
    for _ in range(2):
        at.engine.release()
        if device.type == "cpu":  # on a GPU they keep their addresses
            assert all(tensor.untyped_storage().nbytes() == 0 for tensor in held)
            assert all(storage.nbytes() == 0 for storage in cache)
        assert used_bytes(device) < before - 90 * MEBIBYTE
        at.weight_sync.sync(WEIGHT_VERSION)
        assert used_bytes(device) < before - 90 * MEBIBYTE, "others may need the cache's until then"
        assert tokens_of(at.generate(prompts, 0.0)) == greedy
        assert [storage.nbytes() for storage in cache] == sizes
        assert tokens_of(at.generate(prompts, 1.0)) == sampled


def a_weight_that_arrives_wrong_is_named(at: Pair) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    at.change_weights(7)
    run = at.weight_sync._transfer.run

    def corrupting() -> object:
        moved = run()
        if at.parallel.rank == at.parallel.size - 1:
            at.engine.views()[name][0].tensor[3, 5] += 1e-3
        return moved

    at.weight_sync._transfer.run = corrupting  # type: ignore[method-assign,assignment]
    try:
        for _ in range(2):  # not taken for good the second time either
            try:
                at.weight_sync.sync(WEIGHT_VERSION)
            except StaleWeights as error:
                assert name in str(error) and "1 of" in str(error), error
            else:
                raise AssertionError("nothing was noticed")
    finally:
        at.weight_sync._transfer.run = run  # type: ignore[method-assign]
    at.weight_sync.sync(WEIGHT_VERSION)
    at.assert_greedy_answers_are_right()


def no_text_is_made_in_vllm(at: Pair) -> None:
    """It has no tokenizer, and is not asked for texts: the role makes them of what is returned."""
    core, asked = at.engine._core, []
    submit = core.preprocess_add_request

    def note(request: Any) -> Any:
        asked.append(request.sampling_params.detokenize)
        return submit(request)

    at.weight_sync.sync(WEIGHT_VERSION)
    core.preprocess_add_request = note
    try:
        at.generate(at.prompts(), 0.0)
    finally:
        core.preprocess_add_request = submit
    assert asked == [False] * len(PROMPT_LENGTHS)
    assert core.vllm_config.model_config.skip_tokenizer_init


def as_every_engine(at: Pair, scenario: Callable[[EngineUnderTest], None]) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    with torch.no_grad():
        scenario(
            EngineUnderTest(at.engine, at.prompts(), MAX_RESPONSE, STOPS, rank=dist.get_rank())
        )


def copies_are_packed_while_weights_are_published(at: Pair) -> None:
    """Every matrix that inputs are multiplied with has one. An embedding is only read by rows."""
    layers = {
        name: layer
        for name, layer in at.engine._runner.model.named_modules()
        if hasattr(layer, "cpu_linear")
    }

    def packed() -> list[str]:
        return [n for n, layer in layers.items() if layer.cpu_linear is not linear]

    linear = torch.nn.functional.linear
    at.weight_sync.sync(WEIGHT_VERSION)
    assert packed() == [name for name in layers if not name.endswith("embed_tokens")]
    assert len(packed()) == 4 * LAYERS + 1
    at.engine.release()
    assert not packed()
    at.weight_sync.sync(WEIGHT_VERSION)
    assert packed()


def weights_without_a_kernel_are_not_packed(_: Pair) -> None:
    layers: Any = [torch.nn.Linear(8, 4, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    for layer in layers:
        layer.cpu_linear = torch.nn.functional.linear
    PackedWeights(layers).pack()
    assert all(layer.cpu_linear is torch.nn.functional.linear for layer in layers)


def heads_with_kernels_are_those_that_plans_take(_: Pair) -> None:
    assert_kernels_are_those_that_plans_take()


@torch.no_grad()
def excluded_tokens_are_never_sampled(at: Pair) -> None:
    """Nor counted: log-probabilities are those of a softmax over all others."""
    at.weight_sync.sync(WEIGHT_VERSION)
    prompts, model = repeat_rows(at.prompts(), 3), at.peer()
    samples = {0.0: at.generate(prompts, 0.0), 1.0: at.generate(prompts, 1.0)}
    allowed = [token for token in range(VOCABULARY) if token not in TEXTLESS_IDS]
    for temperature, got in samples.items():
        assert not np.isin(got.tokens.values, TEXTLESS_IDS).any()
        for prompt, response, found in zip(
            prompts.runs(), got.tokens.runs(), got.log_probs.runs(), strict=True
        ):
            tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
            logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1]
            assert np.isin(logits.argmax(dim=1).cpu().numpy(), TEXTLESS_IDS).all(), "the highest"
            expected = torch.full_like(logits, -torch.inf)
            expected[:, allowed] = (logits[:, allowed] / (temperature or 1.0)).log_softmax(dim=1)
            chosen = expected.gather(1, tokens[len(prompt) :, None])[:, 0]
            assert (chosen - torch.tensor(found)).abs().max() < 1e-4


def more_sequences_than_the_cache_holds_are_sampled_alike(at: Pair) -> None:
    """Some are preempted, and computed again from their prompts; their tokens stay."""
    at.weight_sync.sync(WEIGHT_VERSION)
    # With its third token every sequence needs another block, and there are none.
    prompts = ragged([286] * 64, seed=4)
    seeds = list(range(64))
    scheduler, preempted = at.engine._core.scheduler, []
    preempt = scheduler._preempt_request

    def note(request: Any, *args: Any, **options: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *args, **options)

    with ends.changed_settings(at, stop_token_ids=()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_preempt_request", note)
        everything = at.sample(prompts, Sampling(1.0, seeds))
        num_preempted = len(preempted)
        few = [
            at.sample(prompts.take(rows), Sampling(1.0, rows.tolist()))
            for rows in np.array_split(np.arange(64), 4)
        ]
    assert num_preempted == len(preempted) > 0
    assert tokens_of(everything) == [tokens for part in few for tokens in tokens_of(part)]
    np.testing.assert_allclose(
        everything.log_probs.values,
        np.concatenate([part.log_probs.values for part in few]),
        atol=1e-4,
    )


EVERY_MODEL: dict[str, Callable[[Pair], None]] = {
    "greedy answers follow the trainer": greedy_answers_follow_the_trainer,
    "log-probs agree with the trainer": log_probs_agree_with_the_trainer,
}
ONE_MODEL: dict[str, Callable[[Pair], None]] = {
    "seeds alone decide a sample": seeds_alone_decide_a_sample,
    "answers end at an end token or the limit": answers_end_at_an_end_token_or_the_limit,
    "prompts may be as long as the limit": prompts_may_be_as_long_as_the_limit,
    "prompts of more tokens than a step takes are sampled alike": (
        prompts_of_more_tokens_than_a_step_takes_are_sampled_alike
    ),
    "what is left of a response goes on elsewhere": what_is_left_of_a_response_goes_on_elsewhere,
    "only current weights generate": only_current_weights_generate,
    "released memory comes back without a trace": released_memory_comes_back_without_a_trace,
    "a weight that arrives wrong is named": a_weight_that_arrives_wrong_is_named,
    "no text is made in vLLM": no_text_is_made_in_vllm,
    **{name: partial(as_every_engine, scenario=each) for name, each in CONTRACT.items()},
}
PACKING: dict[str, Callable[[Pair], None]] = {
    "copies are packed while weights are published": copies_are_packed_while_weights_are_published,
}
CPU_KERNELS: dict[str, Callable[[Pair], None]] = {
    "weights without a kernel are not packed": weights_without_a_kernel_are_not_packed,
    "heads with kernels are those that plans take": heads_with_kernels_are_those_that_plans_take,
}
PREEMPTING: dict[str, Callable[[Pair], None]] = {
    "more sequences than the cache holds are sampled alike": (
        more_sequences_than_the_cache_holds_are_sampled_alike
    ),
}
ON_CPU = {"llama": CPU_KERNELS | PACKING, "tied": PACKING, "qwen2": PREEMPTING}
"""By kind of model: one with a head of its own, and a tied one."""
EXCLUDING: dict[str, Callable[[Pair], None]] = {
    "excluded tokens are never sampled": excluded_tokens_are_never_sampled,
}


TRUNCATING: dict[str, Callable[[Pair], None]] = {
    "log-probs are those of the kept tokens": truncated.log_probs_are_those_of_the_kept_tokens,
    "one kept token is the greedy one": truncated.one_kept_token_is_the_greedy_one,
    "sampling of all tokens records nothing": truncated.sampling_of_all_tokens_records_nothing,
    "sets end with the response": ends.sets_end_with_the_response,
    "sets follow responses to another engine": truncated.sets_follow_responses_to_another_engine,
}


ENDING: dict[str, Callable[[Pair], None]] = {
    "responses end at stop texts": ends.responses_end_at_stop_texts,
    "a stop text inside of an end token drops nothing": (
        ends.a_stop_text_inside_of_an_end_token_drops_nothing
    ),
    "a full context ends a response": ends.a_full_context_ends_a_response,
}


def synced(at: Pair, check: Callable[[Pair], None]) -> None:
    at.weight_sync.sync(WEIGHT_VERSION)
    check(at)


def close_engines() -> None:
    for pair in PAIRS.values():
        pair.engine.close()
    PAIRS.clear()


def _scenario(
    world: World,
    folder: Path,
    *,
    check: Callable[[Pair], None],
    kind: str,
) -> None:
    if world.rank == 0 and kind not in PAIRS:
        write_model(kind, folder / kind, favoured=TEXTLESS_IDS if kind in EXCLUDED else ())
    parallel = part_of(world, mesh_of(0, world.size))
    dist.barrier()
    assert parallel is not None
    if kind not in PAIRS:
        if world.device.type == "cuda":  # vLLM's allocator there serves one engine per process
            close_engines()
        PAIRS[kind] = Pair(kind, folder, world, parallel, mesh_of(0, 1, parallel.size))
    check(PAIRS[kind])


def scenarios(size: int, device: str = "cpu") -> dict[str, Scenario]:
    """All scenarios of a world, model by model; its ranks are one engine. Engines that are cut try
    more families."""
    on_cpu = ON_CPU if device == "cpu" else {}
    ending = {name: partial(synced, check=check) for name, check in ENDING.items()}
    truncating = {name: partial(synced, check=check) for name, check in TRUNCATING.items()}
    return {
        f"{name} ({kind})": partial(_scenario, check=check, kind=kind)
        for kind in (*MODELS, *(GENERATING if size > 1 else ()))
        for name, check in (
            EVERY_MODEL
            | (ONE_MODEL | ending if kind == "llama" else {})
            | on_cpu.get(kind, {})
            | (EXCLUDING if kind in EXCLUDED else {})
            | (truncating if kind in TRUNCATED else {})
        ).items()
    }


if __name__ == "__main__":
    rank, world_size, folder = sys.argv[1:]
    chosen = scenarios(int(world_size), os.environ[DEVICE])
    run_scenarios(int(rank), int(world_size), Path(folder), chosen, close_engines)
