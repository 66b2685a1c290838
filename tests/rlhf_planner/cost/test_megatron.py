"""Passes under Megatron by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import Precision
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.memory.role_model import RoleModel

from .simple import ENDLESS, IDEAL, MEGATRON, a_role, equal, layers_of, links_of

BATCH = CallRows(4, equal(4), equal(6))
"""40 tokens, 24 of them predicted."""
ONE = a_role(engine=MEGATRON, micro_batch_tokens=10)
"""Four micro-batches of one row."""
INSTANT = replace(IDEAL, float32_flops_per_second=ENDLESS, bfloat16_flops_per_second=ENDLESS)
LINKED = replace(INSTANT, link_bytes_per_second=1.0)
STORING = replace(INSTANT, memory_bytes_per_second=1.0)
BLOCK = 576 + 2 * 8


def on(**sizes: int) -> RoleModel:
    return replace(ONE, mesh=Mesh(pool="a", **{"data": 1, **sizes}))


def trained(hardware: Hardware, role: RoleModel, batch: CallRows = BATCH) -> CallSeconds:
    return train_seconds(role, batch, layers_of(role, hardware), links_of(hardware))


def inferred(hardware: Hardware, role: RoleModel) -> CallSeconds:
    return infer_seconds(role, BATCH, layers_of(role, hardware), links_of(hardware))


def test_one_rank_computes_what_fsdps_does() -> None:
    fsdp = trained(IDEAL, a_role(micro_batch_tokens=10))
    assert trained(IDEAL, ONE).total == pytest.approx(fsdp.total)
    assert inferred(IDEAL, ONE).total == pytest.approx(
        inferred(IDEAL, a_role(micro_batch_tokens=10)).total
    )


def test_the_bubble_is_a_slot_of_the_slowest_stage_for_each_other_stage() -> None:
    """Two stages of a block each; the last one has the head. Four micro-batches and one slot."""
    block, head = 6 * 576 * 10 + 3.5 * 32 * 50, 8 * 512 * 6
    call = trained(IDEAL, on(pipeline=2))
    assert call.compute == pytest.approx(4 * (block + head) / 1e12)
    assert call.bubble == pytest.approx((block + head) / 1e12)
    assert call.total == pytest.approx((4 + 2 - 1) * (block + head) / 1e12)
    forward = 2 * 576 * 10 + 32 * 50 + 2 * 512 * 6
    assert inferred(IDEAL, on(pipeline=2)).total == pytest.approx(5 * forward / 1e12)
    critic = trained(IDEAL, replace(on(pipeline=2), head=ModelHead.SCALAR))
    assert critic.bubble == pytest.approx(block / 1e12)


def test_tensor_ranks_reduce_after_attention_and_after_the_feed_forward_layer() -> None:
    """10 tokens of 8 float32: an all-reduce between two ranks moves 320 bytes. Four of each of two
    blocks, one after the embedding, one of the head's input; with recomputation six."""
    call = trained(LINKED, on(tensor=2))
    assert call.tensor_communication == pytest.approx(4 * (2 * 4 + 2) * 320)
    again = trained(LINKED, replace(on(tensor=2), recompute=True))
    assert again.tensor_communication == pytest.approx(4 * (2 * 6 + 2) * 320)
    assert inferred(LINKED, on(tensor=2)).total == pytest.approx(4 * (2 * 2 + 1) * 320)


def test_stages_send_activations_and_their_gradients() -> None:
    """320 bytes forward and backward of each of four micro-batches, and once more in the bubble."""
    call = trained(LINKED, on(pipeline=2))
    assert call.stage_communication == pytest.approx(4 * 2 * 320)
    assert call.bubble == pytest.approx(2 * 320)
    shared = replace(on(pipeline=2, tensor=2), sequence_parallel=True)
    assert trained(LINKED, shared).stage_communication == pytest.approx(4 * 2 * 160)
    whole = replace(shared, sequence_parallel=False)
    assert trained(LINKED, whole).stage_communication == pytest.approx(4 * 2 * 320)


def test_gradients_are_reduced_once_and_weights_gathered() -> None:
    """Two replicas. Distributed: half of 4 bytes of all gradients, then half of 2 bytes of weights
    in bfloat16; else an all-reduce of the gradients, which is twice half."""
    role = replace(on(data=2), precision=Precision.BFLOAT16)
    parameters = role.num_parameters
    batch = CallRows(8, BATCH.prompt, BATCH.response)
    assert trained(LINKED, role, batch).data_communication == pytest.approx(
        parameters * (4 + 2) / 2
    )
    plain = replace(role, distributed_optimizer=False)
    assert trained(LINKED, plain, batch).data_communication == pytest.approx(parameters * 4)
    more = CallRows(16, BATCH.prompt, BATCH.response)
    assert trained(LINKED, plain, more).data_communication == pytest.approx(parameters * 4)


def test_tied_tables_are_summed_between_both_ends_of_a_pipeline() -> None:
    role = on(pipeline=2)
    tied = replace(role, shape=replace(role.shape, tied_embeddings=True))
    difference = trained(LINKED, tied).data_communication - trained(LINKED, role).data_communication
    assert difference == pytest.approx(64 * 8 * 4)


def test_the_optimizer_steps_its_part_and_writes_bfloat16() -> None:
    """40 bytes of a parameter, and 6 where weights are written in bfloat16: of half of them with
    two replicas that share."""
    role = replace(on(data=2), precision=Precision.BFLOAT16)
    batch = CallRows(8, BATCH.prompt, BATCH.response)
    parameters = role.num_parameters
    assert trained(STORING, role, batch).optimizer == pytest.approx(parameters / 2 * 46)
    plain = replace(role, distributed_optimizer=False)
    assert trained(STORING, plain, batch).optimizer == pytest.approx(parameters * 46)
    in_float32 = replace(role, precision=Precision.FLOAT32)
    assert trained(STORING, in_float32, batch).optimizer == pytest.approx(parameters / 2 * 40)


def test_gradients_of_each_micro_batch_are_added_to_the_sum() -> None:
    """float32: 4 + 8 bytes of each parameter; FSDP alone on a device has none of it."""
    extra = trained(STORING, ONE).memory - trained(STORING, a_role(micro_batch_tokens=10)).memory
    assert extra == pytest.approx(4 * ONE.num_parameters * 12)


def test_more_micro_batches_have_a_smaller_share_of_bubble() -> None:
    few, many = (
        trained(IDEAL, on(pipeline=2), CallRows(rows, BATCH.prompt, BATCH.response))
        for rows in (4, 40)
    )
    assert few.bubble == pytest.approx(few.total / 5)
    assert many.bubble == pytest.approx(many.total / 41)
