"""Memory under Megatron: hand-computed sizes of stages, and what must grow with what."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import Phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.plan_memory import MemoryItem, MemoryUse, sum_by_phase
from rlhf_api.spec.models import BuiltinModel, Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.megatron import (
    layer_parameters,
    layer_token_bytes,
    stage_parameters,
)
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.memory.roles import checkpoint_items, role_items
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS, WELL_KNOWN_MODELS
from rlhf_sizing.shape import DecoderShape

from ..phases import names_of, phases_of
from .tiny_role import tiny_role

TINY = BUILTIN_MODELS[BuiltinModel.TINY_LLAMA]
LLAMA_8B = WELL_KNOWN_MODELS["meta-llama/Llama-3.1-8B"]
LLAMA_70B = WELL_KNOWN_MODELS["meta-llama/Llama-3.1-70B"]
PHASES = phases_of("actor.generate", "actor.infer", "actor.train")


def model(data: int = 1, tensor: int = 1, pipeline: int = 1, **changes: Any) -> RoleModel:
    own = {"engine": TrainingEngineType.MEGATRON, "is_saved": True}
    mesh = Mesh(pool="pool", data=data, tensor=tensor, pipeline=pipeline)
    return tiny_role(mesh=mesh, **(own | changes))


def large(data: int, tensor: int, pipeline: int, **changes: Any) -> RoleModel:
    """Llama 70B on GPUs."""
    own = {"shape": LLAMA_70B, "precision": Precision.BFLOAT16, "device": Device.GPU}
    return model(data, tensor, pipeline, **({"peak_tokens": 4096} | own | changes))


def sizes(items: tuple[MemoryItem, ...], phase: str) -> dict[MemoryUse, int]:
    found = [item for item in items if phase in names_of(item)]
    assert len({item.what for item in found}) == len(found)
    return {item.what: item.bytes for item in found}


@pytest.mark.parametrize(
    ("changes", "tensor", "in_float32", "in_bfloat16"),
    [
        ({}, 1, 16_920, 9_496),
        ({"num_key_value_heads": 2}, 1, 16_152, 9_112),
        ({"query_key_norm": True}, 1, 17_976, 11_576),
        ({"qkv_bias": True}, 1, 16_920, 9_496),
        ({}, 2, 8_716, 4_876),
    ],
)
def test_a_layer_keeps_what_autograd_saves(
    changes: dict[str, Any], tensor: int, in_float32: int, in_bfloat16: int
) -> None:
    """Measured with saved_tensors_hooks on a `Stage` of TinyLlama's shape, as the difference
    between 4 and 2 layers, per token."""
    made = model(tensor=tensor, shape=dataclasses.replace(TINY, **changes))
    assert layer_token_bytes(made) == in_float32
    other = dataclasses.replace(made, precision=Precision.BFLOAT16)
    assert layer_token_bytes(other) == in_bfloat16


def test_norms_are_whole_without_sequence_parallelism() -> None:
    """Measured like those above."""
    whole = model(tensor=2, sequence_parallel=False)
    assert layer_token_bytes(whole) == 10_256
    assert layer_token_bytes(dataclasses.replace(whole, precision=Precision.BFLOAT16)) == 6_160


def test_one_rank_holds_the_published_parameters() -> None:
    for name in ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", "Qwen/Qwen3-8B"):
        shape = WELL_KNOWN_MODELS[name]
        assert stage_parameters(model(shape=shape), 0) == shape.num_parameters, name


def test_stages_of_a_large_model_by_hand() -> None:
    """Of 8 tensor ranks: matrices of 8192 x (8192 + 2 x 1024), 8192 x 8192 and 3 x 8192 x 28672,
    two norms; 128,256 / 8 rows of 8192."""
    layer = (8192 * 10_240 + 8192 * 8192 + 3 * 8192 * 28_672) // 8 + 2 * 8192
    table = 16_032 * 8192
    made = large(2, 8, 4)
    assert layer_parameters(LLAMA_70B, 8) == layer == 106_971_136
    found = [stage_parameters(made, stage) for stage in range(4)]
    assert found == [20 * layer + table, 20 * layer, 20 * layer, 20 * layer + 8192 + table]


def test_a_tied_model_holds_its_embedding_at_both_ends() -> None:
    shape = WELL_KNOWN_MODELS["meta-llama/Llama-3.2-1B"]
    first, last = (stage_parameters(model(pipeline=2, shape=shape), stage) for stage in (0, 1))
    assert last - first == shape.hidden_size
    assert first + last == shape.num_parameters + shape.embedding_parameters


def test_a_critic_has_one_row_at_its_end() -> None:
    critic = model(tensor=2, pipeline=2, head=ModelHead.SCALAR)
    layer = 131_072 + 256
    assert [stage_parameters(critic, s) for s in (0, 1)] == [layer + 32 * 128, layer + 2 * 128]
    assert stage_parameters(model(head=ModelHead.SCALAR), 0) == TINY.num_critic_parameters
    logits = [each for each in role_items(critic, PHASES) if each.what is MemoryUse.LOGITS]
    assert [each.bytes for each in logits] in ([], [32 * 128 * 4]), "the embedding's gradient"


def test_the_vocabulary_is_padded_for_all_tensor_ranks() -> None:
    """50,257 rows: the next multiple of 64 is 50,304; with 3 ranks, of 192 as well."""
    shape = dataclasses.replace(TINY, vocab_size=50_257)
    cut = stage_parameters(model(tensor=2, shape=shape), 0)
    assert cut == 2 * (131_072 + 256) + 2 * 25_152 * 128 + 128
    three = DecoderShape(1, 96, 96, 3, 3, 32, vocab_size=193)
    of_layer = 8 * 96 * 96 // 3 - 96 * 96 // 3  # 4 + 3 matrices of 96 x 96
    assert stage_parameters(model(tensor=3, shape=three), 0) == (
        of_layer + 2 * 96 + 2 * 128 * 96 + 96
    )


def test_a_tiny_model_on_eight_ranks_in_float32() -> None:
    """The last stage has most weights, the first most activations: two micro-batches."""
    items = role_items(model(2, 2, 2), PHASES)
    count = 131_072 + 256 + 32 * 128 + 128
    states = {
        MemoryUse.MASTER_WEIGHTS: count * 4,
        MemoryUse.OPTIMIZER: count // 2 * 8,
        MemoryUse.GATHERED: 1000 * 128 * 4,
    }
    assert sizes(items, "actor.generate") == states
    assert sizes(items, "actor.train") == states | {
        MemoryUse.GRADIENTS: count * 4,
        MemoryUse.ACTIVATIONS: 1000 * 2 * 8_716,
        MemoryUse.LOGITS: 32 * 128 * 4,
    }
    logits = 32 * 12 + (128 * 12 // 2 + 2 * 128 * 4)
    assert sizes(items, "actor.infer") == states | {
        MemoryUse.ACTIVATIONS: 1000 * 8_716,
        MemoryUse.LOGITS: 1000 * logits,
    }


def test_no_more_tokens_are_under_way_than_a_replica_has() -> None:
    """2,500 of them on the first of four stages with two layers each, not 4,000."""
    shape = dataclasses.replace(TINY, num_layers=8)
    made = model(1, 1, 4, shape=shape, batch_tokens=2_500, longest_shared_tokens=100)
    items = sizes(role_items(made, PHASES), "actor.train")
    assert items[MemoryUse.ACTIVATIONS] == 2_500 * 2 * 16_920
    assert items[MemoryUse.MASKS] == (1000 + 2_500 * 2 * 4) * 100


def test_a_large_model_in_bfloat16() -> None:
    """A layer keeps 20,481 bytes per token of norms, 42,784 of its matrices, 1,024 of angles."""
    made = large(2, 8, 4)
    count = stage_parameters(made, 3)
    layer = (2 * (8192 * 10 + 4)) // 8 + (3 * 9216 * 2 + 64 * 4 + 5 * 28_672 * 2) // 8 + 1024
    assert layer == 64_289
    assert sizes(role_items(made, PHASES), "actor.train") == {
        MemoryUse.WEIGHTS: count * 2,
        MemoryUse.MASTER_WEIGHTS: count // 2 * 4,
        MemoryUse.OPTIMIZER: count // 2 * 8,
        MemoryUse.GRADIENTS: count * 4,
        MemoryUse.GATHERED: 4096 * 8192 * 2,
        MemoryUse.ACTIVATIONS: 4096 * 80 * layer,
        MemoryUse.LOGITS: 128_256 // 8 * 8192 * 2,
    }


def test_logits_and_their_gradient_are_there_at_the_end_of_one_stage() -> None:
    """A block of 2^25 of them, of a micro-batch's 128 million; and the weights' gradient."""
    made = model(8, shape=LLAMA_8B, precision=Precision.BFLOAT16, device=Device.GPU)
    inputs = 4096 * (4 + 4 + 2) + 2 * 4096 * 2
    block = 2**25 * 12
    items = role_items(made, PHASES)
    train, infer = (sizes(items, f"actor.{kind}")[MemoryUse.LOGITS] for kind in ("train", "infer"))
    assert infer == 1000 * inputs + block
    assert train == infer + 1000 * 4096 * (4 + 2) + 2 * 128_256 * 4096 * 2


def test_the_last_stage_is_the_fullest_where_its_logits_are_more_than_a_micro_batch() -> None:
    shape = dataclasses.replace(TINY, vocab_size=64_000)
    items = sizes(role_items(model(1, 1, 2, shape=shape), PHASES), "actor.train")
    assert items[MemoryUse.ACTIVATIONS] == 1000 * 16_920
    gradients = 1000 * 128 * (4 + 4) + 2 * 64_000 * 128 * 4
    assert items[MemoryUse.LOGITS] == 1000 * 1024 * 12 + 1000 * 128 * 20 + gradients


def test_replicas_share_states_only_if_they_are_told_to() -> None:
    shared, own = (
        sizes(role_items(large(4, 8, 2, distributed_optimizer=each), PHASES), "actor.train")
        for each in (True, False)
    )
    for what in (MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER):
        assert own[what] == pytest.approx(4 * shared[what])
    for what in (MemoryUse.WEIGHTS, MemoryUse.GRADIENTS):
        assert own[what] == shared[what]


def test_a_frozen_role_has_weights_only() -> None:
    made = large(2, 8, 4, is_trained=False)
    weights = stage_parameters(made, 3) * 2
    assert sizes(role_items(made, PHASES), "actor.generate") == {
        MemoryUse.WEIGHTS: weights,
        MemoryUse.GATHERED: 4096 * 8192 * 2,
    }
    (saved,) = checkpoint_items(made, PHASES)
    assert saved.bytes == weights


def test_recomputation_keeps_the_inputs_of_layers_and_one_layer() -> None:
    made = model(1, 2, 2, recompute=True)
    items = sizes(role_items(made, PHASES), "actor.train")
    inputs = 128 * 4 // 2
    # The first stage has two micro-batches under way; the last one's logits are more than that.
    inside = 1000 * (32 * 12 + 128 * 12 // 2 + 2 * 128 * 4)
    logits = inside + 1000 * 128 * (4 + 4) + 2 * 32 * 128 * 4
    assert items[MemoryUse.ACTIVATIONS] == 1000 * (inputs + 8_716)
    assert items[MemoryUse.LOGITS] == logits > 1000 * inputs
    whole = model(1, 2, 2, recompute=True, sequence_parallel=False, head=ModelHead.SCALAR)
    activations = sizes(role_items(whole, PHASES), "actor.train")[MemoryUse.ACTIVATIONS]
    assert activations == 1000 * (2 * 128 * 4 + 10_256)


def test_every_layer_keeps_its_mask() -> None:
    """Measured as 4 bytes for each pair of tokens in a layer, in float32."""
    shared = model(pipeline=2, head=ModelHead.SCALAR, longest_shared_tokens=500)
    items = role_items(shared, PHASES)
    assert sizes(items, "actor.train")[MemoryUse.MASKS] == 1000 * 500 * (1 + 2 * 4)
    assert sizes(items, "actor.infer")[MemoryUse.MASKS] == 1000 * 500 * (1 + 4)
    again = role_items(dataclasses.replace(shared, recompute=True), PHASES)
    assert sizes(again, "actor.train")[MemoryUse.MASKS] == 1000 * 500 * (1 + 4)


@pytest.mark.parametrize(
    ("precision", "data", "number_bytes"),
    [(Precision.FLOAT32, 1, 12), (Precision.BFLOAT16, 1, 12), (Precision.BFLOAT16, 2, 6)],
)
def test_what_is_saved_is_float32_weights_and_moments(
    precision: Precision, data: int, number_bytes: int
) -> None:
    (saved,) = checkpoint_items(model(data, 2, 2, precision=precision), PHASES)
    assert saved.bytes == 135_552 * number_bytes
    assert not checkpoint_items(model(is_saved=False), PHASES)


MODELS = st.builds(
    lambda data, tensor, pipeline, layers, heads, **rest: model(
        data,
        tensor,
        pipeline,
        shape=DecoderShape(
            layers * pipeline, 64 * heads, 96 * tensor, heads * tensor, tensor, 64, 1000
        ),
        **rest,
    ),
    data=st.integers(1, 4),
    tensor=st.sampled_from([1, 2, 3, 4, 8]),
    pipeline=st.integers(1, 4),
    layers=st.integers(1, 4),
    heads=st.integers(1, 4),
    head=st.sampled_from(ModelHead),
    precision=st.sampled_from([Precision.FLOAT32, Precision.BFLOAT16]),
    recompute=st.booleans(),
    sequence_parallel=st.booleans(),
    distributed_optimizer=st.booleans(),
    longest_shared_tokens=st.sampled_from([0, 100]),
)


def total(made: RoleModel) -> dict[Phase, int]:
    return sum_by_phase(role_items(made, PHASES))


@given(MODELS)
def test_stages_and_tensor_ranks_hold_the_whole_model(made: RoleModel) -> None:
    """Once, but for norms, a critic's row and the padding, which are on every tensor rank."""
    mesh, shape = made.mesh, made.shape
    held = sum(stage_parameters(made, stage) for stage in range(mesh.pipeline)) * mesh.tensor
    norms = (2 * shape.num_layers + 1) * shape.hidden_size
    padding = -1000 % (64 if mesh.tensor != 3 else 192) * shape.hidden_size
    is_scalar = made.head is ModelHead.SCALAR
    extra = (mesh.tensor - 1) * (norms + is_scalar * shape.hidden_size)
    tables = 1 if is_scalar else 2
    assert held == made.num_parameters + extra + tables * padding


@given(MODELS, st.integers(1, 1000))
def test_more_tokens_never_take_less_and_more_replicas_never_more(
    made: RoleModel, more: int
) -> None:
    before = total(made)
    grown = total(dataclasses.replace(made, peak_tokens=made.peak_tokens + more))
    assert all(grown[phase] >= before[phase] for phase in before)
    doubled = made.mesh.model_copy(update={"data": 2 * made.mesh.data})
    shared = total(dataclasses.replace(made, mesh=doubled))
    assert all(shared[phase] <= before[phase] for phase in before)


@given(MODELS)
def test_sequence_parallelism_and_a_shared_optimizer_never_take_more(made: RoleModel) -> None:
    for field in ("sequence_parallel", "distributed_optimizer"):
        without, with_it = (
            total(dataclasses.replace(made, **{field: each})) for each in (False, True)
        )
        # Otherwise there is the buffer in which what is shared is put together.
        at_work = phases_of("actor.infer", "actor.train")
        assert all(with_it[phase] <= without[phase] for phase in at_work)
