"""Passes under FSDP by hand: one part of the device takes time, then another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.memory.role_model import RoleModel

from .simple import ENDLESS, IDEAL, a_role, equal, layers_of, links_of

BATCH = CallRows(8, equal(4), equal(6))
"""On two replicas 40 tokens each, 24 of them predicted."""
TWO = a_role(mesh=Mesh(pool="a", data=2), micro_batch_tokens=20)
"""Two micro-batches of two rows."""
INSTANT = replace(IDEAL, float32_flops_per_second=ENDLESS, bfloat16_flops_per_second=ENDLESS)
LINKED = replace(INSTANT, link_bytes_per_second=1.0)
"""Only links take time: a second for each byte."""
STORING = replace(INSTANT, memory_bytes_per_second=1.0)
ROOT = 64 * 8 + 8 + 64 * 8
BLOCK = 576 + 2 * 8


def trained(
    hardware: Hardware, role: RoleModel = TWO, batch: CallRows = BATCH, **options: int
) -> CallSeconds:
    return train_seconds(role, batch, layers_of(role, hardware), links_of(hardware), **options)


def inferred(hardware: Hardware, role: RoleModel = TWO) -> CallSeconds:
    return infer_seconds(role, BATCH, layers_of(role, hardware), links_of(hardware))


def test_computation_by_hand() -> None:
    """Of 40 tokens, 24 predicted: 6 FLOP for each weight of two blocks, 8 of the head, which is
    computed again; 3.5 times 32 FLOP for each of 4 x 50 pairs in each block."""
    call = trained(IDEAL)
    flops = 6 * 2 * 576 * 40 + 8 * 512 * 24 + 2 * 3.5 * 32 * 4 * 50
    assert call.compute == pytest.approx(flops / 1e12)
    assert call.total == pytest.approx(call.compute)
    recomputing = trained(IDEAL, replace(TWO, recompute=True))
    more = 2 * 2 * 576 * 40 + 2 * 32 * 4 * 50
    assert recomputing.compute == pytest.approx((flops + more) / 1e12)
    assert inferred(IDEAL).total == pytest.approx(
        (2 * 2 * 576 * 40 + 2 * 512 * 24 + 2 * 32 * 4 * 50) / 1e12
    )


def test_a_value_head_computes_nothing_beside_blocks() -> None:
    role = replace(TWO, head=ModelHead.SCALAR)
    flops = 6 * 2 * 576 * 40 + 2 * 3.5 * 32 * 4 * 50
    assert trained(IDEAL, role).compute == pytest.approx(flops / 1e12)


def test_exposed_collectives_by_hand() -> None:
    """Half of 4 bytes of a block's parameters come from the other rank, g; as many gradients are
    reduced, r = g. With nothing to hide behind, two blocks in each micro-batch wait for: the root's
    and two blocks' weights; these again, and gradients of two blocks and the root."""
    block, root = BLOCK * 4 / 2, ROOT * 4 / 2
    forward = root + 2 * block
    backward = block + (block + block) + block + root
    assert trained(LINKED).data_communication == pytest.approx(2 * (forward + backward))
    assert inferred(LINKED).data_communication == pytest.approx(root + 2 * 2 * block)


def test_gathered_weights_travel_in_the_format_of_the_computation() -> None:
    """2 bytes of a weight, 4 of a gradient."""
    role = replace(TWO, precision=Precision.BFLOAT16)
    gathered, reduced = BLOCK * 2 / 2, BLOCK * 4 / 2
    forward = ROOT * 2 / 2 + 2 * gathered
    backward = gathered + (gathered + reduced) + reduced + ROOT * 4 / 2
    assert trained(LINKED, role).data_communication == pytest.approx(2 * (forward + backward))


def test_collectives_hide_behind_computation() -> None:
    """What takes as long as a block's computation costs nothing but the first gathering and the
    last reduction."""
    slow = replace(IDEAL, float32_flops_per_second=1.0, link_bytes_per_second=1.0)
    block, root = BLOCK * 4 / 2, ROOT * 4 / 2
    call = trained(slow)
    assert call.data_communication == pytest.approx(2 * (root + block + block + root))
    assert call.compute == pytest.approx(trained(IDEAL).compute * 1e12)


def test_nothing_hides_collectives_on_cpus() -> None:
    """As if nothing computed."""
    slow = replace(IDEAL, float32_flops_per_second=1.0, link_bytes_per_second=1.0)
    cpu = replace(TWO, device=Device.CPU)
    assert trained(slow, cpu).data_communication == trained(LINKED).data_communication
    assert inferred(slow, cpu).data_communication == inferred(LINKED).data_communication


def test_copies_of_weights_and_gradients_by_hand() -> None:
    """float32, two ranks: into the buffer and out of it 2 x 4 + (4 + 4) / 2 = 12 bytes forward, the
    same backward, and 4 + 4 + 12 / 2 = 14 for gradients; not the root's weights backward. The rest
    is what one rank without FSDP's buffers moves."""
    plain = trained(STORING, a_role(micro_batch_tokens=20), replace(BATCH, rows=4))
    copies = 2 * (2 * BLOCK * (2 * 12 + 14) + ROOT * (12 + 14))
    assert trained(STORING, TWO).memory - plain.memory == pytest.approx(copies)


def test_each_rank_steps_its_rows() -> None:
    """40 bytes for half of the parameters, for each of the updates."""
    parameters = TWO.num_parameters
    assert trained(STORING).optimizer == pytest.approx(parameters / 2 * 40)
    batch = replace(BATCH, rows=16)
    twice = trained(STORING, batch=batch, mini_batches=2)
    assert twice.optimizer == pytest.approx(2 * parameters / 2 * 40)
    assert twice.memory == pytest.approx(2 * trained(STORING).memory)
    thrice = trained(STORING, epochs=3)
    assert thrice.total == pytest.approx(3 * trained(STORING).total)


def test_one_rank_communicates_with_nobody() -> None:
    call = trained(LINKED, a_role())
    assert call.total == pytest.approx(0, abs=1e-9)


def test_between_nodes_the_network_counts() -> None:
    """Sixteen ranks on two nodes: half of all comes into a node, over eight cards."""
    role = replace(TWO, mesh=Mesh(pool="a", data=16))
    hardware = replace(LINKED, link_bytes_per_second=ENDLESS, network_bytes_per_second=1.0)
    batch = replace(BATCH, rows=64)
    block, root = BLOCK * 4 / 2 / 8, ROOT * 4 / 2 / 8
    call = trained(hardware, role, batch)
    assert call.data_communication == pytest.approx(2 * (2 * root + 6 * block))
