"""Bytes of a transition against the plans that the runtime makes of the same layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import TrainingEngineType
from rlhf_planner.cost.transfers import (
    MOVED_TENSOR_SECONDS,
    received_on,
    reshard_seconds,
    reshard_traffic,
)
from rlhf_planner.memory.engine_groups import TrainedModel, kept_bytes
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.topology import Topology
from rlhf_sizing.shape import DecoderShape

from ...rlhf_runtime.reshard import model_layouts as ml
from .simple import FSDP, IDEAL, LLAMA_2_70B, MEGATRON, links_of

SHAPE = DecoderShape(
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=8,
    vocab_size=512,
)
PER_NODE = 4
CASES = [
    (FSDP, Mesh(pool="a", data=8), 2, 2),
    (FSDP, Mesh(pool="a", data=8), 2, 1),
    (FSDP, Mesh(pool="a", data=8), 1, 1),
    (FSDP, Mesh(pool="a", data=4), 4, 1),
    (MEGATRON, Mesh(pool="a", data=2, tensor=4), 2, 2),
    (MEGATRON, Mesh(pool="a", data=2, tensor=4), 1, 1),
    (MEGATRON, Mesh(pool="a", data=1, tensor=4, pipeline=2), 2, 2),
    (MEGATRON, Mesh(pool="a", data=2, tensor=2, pipeline=2), 4, 1),
    (MEGATRON, Mesh(pool="a", data=8), 1, 1),
]


def trained(engine: TrainingEngineType, mesh: Mesh, shape: DecoderShape = SHAPE) -> TrainedModel:
    return TrainedModel(shape, mesh, 2, engine)


def engines_of(mesh: Mesh, tensor: int, stride: int) -> Mesh:
    return Mesh(pool="a", data=mesh.num_devices // tensor, tensor=tensor, tensor_stride=stride)


@pytest.mark.parametrize(("engine", "mesh", "tensor", "stride"), CASES)
def test_what_ranks_receive_is_what_a_reshard_sends(
    engine: TrainingEngineType, mesh: Mesh, tensor: int, stride: int
) -> None:
    """In all by kind of link, within 0.5 %: norms, which all ranks want, come to a node once, and
    are counted here once for each part of an engine. Of the worst rank within a tenth of a rank's
    part, as plans share out what crosses in whole pieces."""
    model, engines = trained(engine, mesh), engines_of(mesh, tensor, stride)
    shapes = ml.of_decoder(SHAPE)
    if engine is FSDP:
        source = ml.fully_sharded(shapes, mesh.data)
    else:
        places = ml.training_places(mesh.pipeline, mesh.tensor, mesh.data)
        source = ml.model_parallel(shapes, places, mesh.tensor, mesh.pipeline, SHAPE.num_layers)
    indexes = {
        rank: (0, index) for group in engines.tensor_groups for index, rank in enumerate(group)
    }
    in_order = [indexes[rank] for rank in range(mesh.num_devices)]
    target = ml.model_parallel(shapes, in_order, tensor, 1, SHAPE.num_layers)
    topology = Topology.regular(mesh.num_devices, PER_NODE)
    traffic = plan_reshard(source, target, topology).traffic

    nodes = range(-(-mesh.num_devices // PER_NODE))
    ranks = [each for node in nodes for each in received_on(model, engines, node, PER_NODE)]
    assert sum(r.kept for r in ranks) * 2 == kept_bytes(model, engines)
    assert sum(r.between for r in ranks) == pytest.approx(sum(traffic.received_between), rel=0.005)
    assert sum(r.within for r in ranks) == pytest.approx(sum(traffic.received_within), rel=0.005)
    worst = reshard_traffic(model, engines, PER_NODE)
    assert worst.between == pytest.approx(max(traffic.received_between), abs=0.1 * worst.needed)
    assert worst.within == pytest.approx(max(traffic.received_within), abs=0.1 * worst.needed)


def test_hybridflows_transition_of_70b() -> None:
    """1-8-2 to 1-2 on two nodes: (t p - t_g p_g) / (t_g p_g t p) = 3/8 of the model, all of it from
    ranks of the same node, and from FSDP what docs/guides/resharding.md computes from plans: 0.104
    between nodes, 0.49 in all of the rank that receives most."""
    model = trained(MEGATRON, Mesh(pool="a", data=2, tensor=8), LLAMA_2_70B)
    engines = Mesh(pool="a", data=8, tensor=2, tensor_stride=4)
    worst = reshard_traffic(model, engines, 8)
    parameters = LLAMA_2_70B.num_parameters
    assert worst.within / parameters == pytest.approx(3 / 8, rel=1e-3)
    assert worst.between == 0
    sharded = reshard_traffic(trained(FSDP, Mesh(pool="a", data=16), LLAMA_2_70B), engines, 8)
    assert sharded.between / parameters == pytest.approx(0.104, abs=0.002)
    assert sharded.within / parameters == pytest.approx(0.386, abs=0.05)


def test_what_stays_where_it_is_takes_no_transfer() -> None:
    mesh = Mesh(pool="a", data=2, tensor=2)
    call = reshard_seconds(trained(MEGATRON, mesh), mesh, links_of(IDEAL))
    assert call.transfer == 0 and call.total > 0  # a copy within the device
    assert call.launch == 0, "kernels of this device take no time to launch"


def test_seconds_by_hand() -> None:
    """Whole replicas from two FSDP ranks of a node: each lacks half of the model, 2 bytes each,
    over a link of 1 byte a second. And memory: three times the 2 bytes of what is wanted, and the
    half that was trained in float32."""
    mesh = Mesh(pool="a", data=2)
    hardware = replace(IDEAL, link_bytes_per_second=1.0)
    call = reshard_seconds(trained(FSDP, mesh), mesh, links_of(hardware))
    parameters = SHAPE.num_parameters
    assert call.total == pytest.approx(parameters / 2 * 2, rel=1e-3)
    storing = replace(IDEAL, memory_bytes_per_second=1.0)
    call = reshard_seconds(trained(FSDP, mesh), mesh, links_of(storing))
    assert call.memory == pytest.approx(parameters * (3 * 2 + 4 / 2), rel=1e-3)


def test_tensors_that_move_and_tensors_that_stay_take_the_host() -> None:
    """Four blocks of nine tensors, embedding, last norm and head: as many moves, or as many pairs
    of kernels."""
    mesh = Mesh(pool="a", data=2)
    launching = links_of(replace(IDEAL, eager_kernel_seconds=1.0))
    moved = reshard_seconds(trained(FSDP, mesh), mesh, launching)
    assert moved.launch == pytest.approx(39 * MOVED_TENSOR_SECONDS)
    stays = reshard_seconds(trained(MEGATRON, mesh), mesh, launching)
    assert stays.launch == 39 * 2


def test_few_senders_limit_many_receivers() -> None:
    """Two ranks of one node send a model to the eight of two others: half of it each, once for each
    node; every rank receives an eighth of what crosses, but a sender sends all of its half
    twice."""
    training, others = Mesh(pool="a", data=2), Mesh(pool="a", first_rank=4, data=8)
    model = TrainedModel(SHAPE, training, 2, FSDP, generation_mesh=others)
    worst = reshard_traffic(model, others, PER_NODE)
    parameters = SHAPE.num_parameters
    assert worst.between == pytest.approx(2 * parameters / 2)
    assert worst.within >= parameters * 3 / 4 - 1


def test_a_thousand_ranks_are_few_to_count() -> None:
    """Parts of at most four nodes."""
    model = trained(FSDP, Mesh(pool="a", data=1024), LLAMA_2_70B)
    worst = reshard_traffic(model, Mesh(pool="a", data=128, tensor=8), 8)
    wanted = LLAMA_2_70B.num_parameters / 8
    assert worst.needed == pytest.approx(wanted, rel=1e-3)
    assert worst.between == pytest.approx(wanted, rel=0.02)
