"""The memory model: hand-computed sizes and what must grow with what."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import Phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.plan_memory import MemoryItem, MemoryPlan, MemoryUse, PhasePeak, sum_by_phase
from rlhf_api.spec.models import BuiltinModel, Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.fsdp import layer_activation_bytes
from rlhf_planner.memory.generation import (
    GenerationLoad,
    generation_weight_bytes,
    kv_bytes,
    kv_token_bytes,
)
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.memory.roles import checkpoint_items, role_items
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS, WELL_KNOWN_MODELS
from rlhf_sizing.shape import DecoderShape

from ..phases import names_of, phases_of
from .tiny_role import tiny_role

TINY = BUILTIN_MODELS[BuiltinModel.TINY_LLAMA]
LLAMA = WELL_KNOWN_MODELS["meta-llama/Llama-3.1-8B"]
PHASES = phases_of("actor.reshard", "actor.generate", "actor.infer", "actor.train")


def on(num_ranks: int, made: RoleModel) -> RoleModel:
    """The role on so many ranks."""
    return dataclasses.replace(made, mesh=Mesh(pool="pool", data=num_ranks))


def sizes(items: tuple[MemoryItem, ...], phase: str) -> dict[MemoryUse, int]:
    found: dict[MemoryUse, int] = {}
    for item in items:
        if phase in names_of(item):
            found[item.what] = found.get(item.what, 0) + item.bytes
    return found


@pytest.mark.parametrize(("compute_bytes", "measured"), [(4, 13_336), (2, 7_192)])
def test_activations_are_those_that_autograd_saves(compute_bytes: int, measured: int) -> None:
    """Measured with saved_tensors_hooks as the difference between 4 and 2 layers, per token."""
    assert layer_activation_bytes(TINY, compute_bytes) == measured


def test_one_rank_in_float32_holds_sixteen_bytes_a_parameter() -> None:
    assert sizes(role_items(on(1, tiny_role()), PHASES), "actor.train") == {
        MemoryUse.MASTER_WEIGHTS: 541_312 * 4,
        MemoryUse.OPTIMIZER: 541_312 * 8,
        MemoryUse.GRADIENTS: 541_312 * 4,
        MemoryUse.ACTIVATIONS: 1000 * 2 * 13_336,
        MemoryUse.LOGITS: 1000 * (64 * 12 + 128 * 12),
    }


def test_two_ranks_share_states_and_gather_layers() -> None:
    block, root = 262_400, 2 * 64 * 128 + 128
    items = sizes(role_items(on(2, tiny_role()), PHASES), "actor.train")
    assert items[MemoryUse.MASTER_WEIGHTS] == 541_312 * 2
    assert items[MemoryUse.OPTIMIZER] == 541_312 * 4
    assert items[MemoryUse.GRADIENTS] == 541_312 * 2 + (root + block) * 4
    assert items[MemoryUse.GATHERED] == (root + 2 * block) * 4


def test_a_frozen_role_has_weights_and_no_states() -> None:
    items = role_items(on(2, tiny_role(is_trained=False)), PHASES)
    assert sizes(items, "actor.generate") == {MemoryUse.WEIGHTS: 541_312 * 2}


def test_a_frozen_role_keeps_its_weights_in_the_format_it_computes_in() -> None:
    made = tiny_role(is_trained=False, is_saved=True, precision=Precision.BFLOAT16)
    for num_ranks in (1, 2):
        items = role_items(on(num_ranks, made), PHASES)
        assert sizes(items, "actor.generate") == {MemoryUse.WEIGHTS: 541_312 * 2 // num_ranks}
        gathered = {item.what for item in items} & {MemoryUse.GATHERED}
        assert bool(gathered) == (num_ranks > 1), (
            "nothing is cast, so that one rank gathers nothing"
        )
        (saved,) = checkpoint_items(on(num_ranks, made), PHASES)
        assert saved.bytes == 541_312 * 2 // num_ranks


@pytest.mark.parametrize("engine", TrainingEngineType)
def test_kept_tokens_take_a_bit_for_each_token_id(engine: TrainingEngineType) -> None:
    """Of TinyLlama's 64 ids, for each of a thousand tokens, wherever log-probs are computed."""
    plain = tiny_role(engine=engine)
    truncated = dataclasses.replace(plain, reads_kept_tokens=True)
    for phase in ("actor.infer", "actor.train"):
        before, after = (
            sum(sizes(role_items(on(1, made), PHASES), phase).values())
            for made in (plain, truncated)
        )
        assert after - before == 1000 * 64 // 8


def test_a_critic_has_no_logits() -> None:
    items = role_items(on(2, tiny_role(head=ModelHead.SCALAR)), PHASES)
    assert MemoryUse.LOGITS not in {item.what for item in items}


def test_of_a_large_vocabulary_one_block_is_there_at_once() -> None:
    made = tiny_role(shape=LLAMA, device=Device.GPU, precision=Precision.BFLOAT16)
    for tokens, block in ((100, 100 * 128_256), (16_384, 1 << 25), (65_536, 65_536 * 1024)):
        large = dataclasses.replace(made, peak_tokens=tokens)
        found = sizes(role_items(on(8, large), PHASES), "actor.train")[MemoryUse.LOGITS]
        assert found == block * 12 + tokens * 4096 * 8


def test_recomputation_keeps_one_layer_and_the_inputs_of_all() -> None:
    items = sizes(role_items(on(1, tiny_role(recompute=True)), PHASES), "actor.train")
    assert items[MemoryUse.ACTIVATIONS] == 1000 * (2 * 128 * 4 + 13_336)


def load(**changes: object) -> GenerationLoad:
    base = GenerationLoad(
        shape=LLAMA,
        mesh=Mesh(pool="pool", data=8),
        device=Device.GPU,
        number_bytes=2,
        max_prompt_tokens=1000,
        max_response_tokens=1001,
        max_concurrent_sequences=4,
        engine=TrainingEngineType.FSDP,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_the_cache_of_llama_8b_takes_128_kib_a_token() -> None:
    assert kv_token_bytes(load(), 1) == 2 * 32 * 8 * 128 * 2 == 128 * 1024
    assert kv_token_bytes(load(), 8) == 16 * 1024
    assert kv_token_bytes(load(), 16) == 16 * 1024, "one head is replicated, not cut"


def test_the_cache_is_whole_blocks_and_a_spare_one() -> None:
    assert kv_bytes(load(), 1, 3) == (3 * 126 + 1) * 16 * 128 * 1024
    tiny = load(shape=TINY, device=Device.CPU, number_bytes=4, max_prompt_tokens=7)
    assert kv_bytes(dataclasses.replace(tiny, max_response_tokens=7), 1, 1) == 16 * 2**20


def test_generation_weights_are_the_parameters_cut_by_tensor_parallelism() -> None:
    norms = (2 * 32 + 1) * 4096
    assert generation_weight_bytes(load(), 1) == LLAMA.num_parameters * 2
    for tensor in (2, 4, 8):
        cut = (LLAMA.num_parameters - norms) // tensor + norms
        assert generation_weight_bytes(load(), tensor) == cut * 2


SHAPES = st.builds(
    lambda layers, heads, groups, dim, middle, vocab, tied: DecoderShape(
        layers, heads * groups * dim, middle, heads * groups, heads, dim, vocab, tied
    ),
    layers=st.integers(1, 40),
    heads=st.integers(1, 8),
    groups=st.integers(1, 4),
    dim=st.sampled_from([32, 64, 128]),
    middle=st.integers(8, 8192),
    vocab=st.integers(8, 200_000),
    tied=st.booleans(),
)
MODELS = st.builds(
    RoleModel,
    role=st.just("actor"),
    mesh=st.just(Mesh(pool="pool", data=1)),
    head=st.sampled_from(ModelHead),
    is_trained=st.booleans(),
    generates=st.booleans(),
    shape=SHAPES,
    precision=st.sampled_from([Precision.FLOAT32, Precision.BFLOAT16]),
    micro_batch_tokens=st.just(4096),
    peak_tokens=st.integers(1, 20_000),
    batch_tokens=st.just(10**9),
    longest_shared_tokens=st.integers(0, 8192),
    is_saved=st.just(False),
    recompute=st.booleans(),
    engine=st.just(TrainingEngineType.FSDP),
    sequence_parallel=st.just(True),
    distributed_optimizer=st.just(True),
)


def total(made: RoleModel, num_shards: int) -> dict[Phase, int]:
    return sum_by_phase(role_items(on(num_shards, made), PHASES))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_mask_has_a_boolean_and_a_number_for_each_pair_of_tokens(recompute: bool) -> None:
    """4 sequences of 500 tokens: 4 x 500 x 500 pairs. Layers that keep their activations keep what
    they made of it: measured as 4 bytes for each pair in float32."""
    shared = tiny_role(peak_tokens=2000, longest_shared_tokens=500, recompute=recompute)
    train, infer = (
        sizes(role_items(shared, PHASES), phase)[MemoryUse.MASKS]
        for phase in ("actor.train", "actor.infer")
    )
    assert infer == 1_000_000 * (1 + 4)
    assert train == 1_000_000 * (1 + 4 * (1 if recompute else shared.shape.num_layers))


@given(MODELS, st.integers(1, 64), st.integers(1, 1000))
def test_more_tokens_never_take_less(made: RoleModel, num_shards: int, more: int) -> None:
    grown = dataclasses.replace(made, peak_tokens=made.peak_tokens + more)
    before, after = total(made, num_shards), total(grown, num_shards)
    assert all(after[phase] >= before[phase] for phase in before)


@given(MODELS, st.integers(1, 64))
def test_more_layers_take_more_and_more_ranks_less(made: RoleModel, num_shards: int) -> None:
    deeper = dataclasses.replace(made.shape, num_layers=made.shape.num_layers + 1)
    before = total(made, num_shards)
    after = total(dataclasses.replace(made, shape=deeper), num_shards)
    assert all(after[phase] > before[phase] for phase in before)
    if num_shards > 1:
        shared = total(made, 2 * num_shards)
        assert all(shared[phase] <= before[phase] for phase in before)


@given(MODELS, st.integers(2, 64))
def test_recomputation_never_takes_more_for_several_layers(
    made: RoleModel, num_shards: int
) -> None:
    kept = total(dataclasses.replace(made, recompute=False), num_shards)
    again = total(dataclasses.replace(made, recompute=True), num_shards)
    if made.shape.num_layers > 1:
        assert all(again[phase] <= kept[phase] for phase in kept)


def test_a_memory_plan_with_wrong_sums_is_refused() -> None:
    item = MemoryItem(role=None, what=MemoryUse.OVERHEAD, bytes=5, phases=phases_of("actor.train"))
    with pytest.raises(ValueError, match="not the sums"):
        MemoryPlan(
            pool="pool",
            first_rank=0,
            num_devices=1,
            capacity_bytes=10,
            items=(item,),
            peaks=(PhasePeak(phase=item.phases[0], bytes=6),),
        )


@pytest.mark.parametrize(
    ("is_trained", "saved", "num_bytes"),
    [
        (True, True, 541_312 // 2 * (4 + 8)),
        (False, True, 541_312 // 2 * 4),
        (False, False, 0),
    ],
)
def test_what_is_saved_is_copied_first(is_trained: bool, saved: bool, num_bytes: int) -> None:
    items = checkpoint_items(on(2, tiny_role(is_trained=is_trained, is_saved=saved)), PHASES)
    assert sum(item.bytes for item in items) == num_bytes
    assert all(item.phases == PHASES for item in items)
