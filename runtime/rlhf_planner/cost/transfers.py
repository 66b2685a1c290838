"""Times of the calls that plans add: offloading, copies and resharding of weights, columns of data.

    offload, load   bytes of weights, master weights and moments over the host's link; if only
                    derived state leaves, rebuilding and gathering it
    copy            a local copy if both roles are cut alike, else all of a rank's part over the
                    links
    columns         numbers of 4 bytes through the object store and, to other nodes, the network

Source: docs/adr/0021-roles-leave-their-devices.md for what moves.

Reshard: weights from the ranks that train to those that generate. Every rank needs its part of the
model. It keeps what it trains of that; the rest comes from ranks of its node if one has it, else
from other nodes, once per node, and is forwarded there (docs/guides/resharding.md). Counted from
the same parts of weights as in memory/engine_groups.py:

    between nodes   needed and not trained on the node, over the ranks that need it there
    within a node   needed, less what is kept and what came from other nodes

The two follow each other. The host adds a time for each tensor that moves: it is cut, packed, sent,
and written to its place (`MOVED_TENSOR_SECONDS`).

Release: an engine unmaps its memory, and maps as much again before the next reshard.

Source: HybridFlow (arXiv 2409.19256), section 5.4, for what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rlhf_api.calls import IDLE
from rlhf_api.mesh import Mesh
from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.seconds import CallSeconds, write_seconds
from rlhf_planner.memory.engine_groups import TrainedModel
from rlhf_planner.memory.megatron import stage_parameters
from rlhf_planner.memory.offloading import COPIED
from rlhf_planner.memory.role_model import FLOAT32_BYTES, GIB, RoleModel
from rlhf_planner.memory.roles import role_items
from rlhf_sizing.limits import TRANSFER_BUCKET_ELEMENTS
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import (
    EMBEDDING,
    Part,
    all_weights,
    num_training_layouts,
    trained_weights,
)

# Seconds of the host for a tensor of the model that moves to other ranks, in a reshard. Six
# transfers of a 4B model between two nodes take 70 to 150 ms, where the links ask for 28 to 55
# (NVIDIA-NeMo/RL, pull request 2808); it rests on three of them (benchmarks/readings.toml).
MOVED_TENSOR_SECONDS = 1.5e-4
# Kernels for a tensor that stays on its rank. 146 tensors took 0.4 ms more than their bytes on an
# H200 (docs/limits.md, One GPU).
KEPT_TENSOR_KERNELS = 2
# Seconds to unmap a GiB of an engine's memory, and to map it again. vLLM unmapped 32 and 47 GiB in
# 0.12 and 0.31 s on A100 (vllm-project/vllm, pull request 48337: sleep at level 2); mapping 5.6 GiB
# took 62 ms on an H200 (docs/limits.md, One GPU).
SLEEP_SECONDS_PER_GIB, WAKE_SECONDS_PER_GIB = 5e-3, 1.1e-2
# Seconds from a call's dispatch to its first work on a rank, through Ray. An estimate.
DISPATCH_SECONDS = 2e-3
# Rate of a column into the object store and out of it. An estimate.
STORE_BYTES_PER_SECOND = 2e9
# Bytes of a number of a column, such as a token or a log-probability.
COLUMN_BYTES = 4


@lru_cache(maxsize=16384)
def host_copy_bytes(model: RoleModel) -> int:
    """Bytes of a role on each of its devices that are copied to the host."""
    return sum(item.bytes for item in role_items(model, (IDLE,)) if item.what in COPIED)


def offload_seconds(model: RoleModel, depth: OffloadDepth, links: Links) -> CallSeconds:
    """Seconds until a role has left its devices.

    Args:
        model: the role.
        depth: how much of it leaves.
        links: of its pool.
    """
    # Derived state is dropped without a copy.
    if depth is not OffloadDepth.EVERYTHING:
        return CallSeconds()
    return CallSeconds(host_copy=links.hardware.host_seconds(host_copy_bytes(model)))


def load_seconds(model: RoleModel, depth: OffloadDepth, links: Links) -> CallSeconds:
    """Seconds until a role is back; arguments as for `offload_seconds`."""
    if depth is OffloadDepth.DERIVED:
        return _written(model, links)
    return offload_seconds(model, depth, links)


def copy_seconds(source: RoleModel, target: RoleModel, links: Links) -> CallSeconds:
    """Seconds of a role's copy of another's weights, on the same ranks.

    Args:
        source: the other role.
        target: the role.
        links: of their pool.
    """
    mesh = target.mesh
    own = target.num_parameters / mesh.num_devices
    if target.engine is TrainingEngineType.MEGATRON:
        own = stage_parameters(target, 0) / (mesh.data if _shares_masters(target) else 1)
    number = FLOAT32_BYTES if target.is_trained else target.compute_bytes
    written = _written(target, links)
    memory = written.memory + links.hardware.memory_seconds(2 * own * number)
    if (source.engine, source.mesh) == (target.engine, target.mesh):
        return CallSeconds(memory=memory, data_communication=written.data_communication)
    nodes = links.group(mesh.first_rank, mesh.num_devices, 1).nodes
    # Of k nodes, one in k bytes comes from ranks of the same node.
    received = own * number
    return CallSeconds(
        memory=memory,
        data_communication=written.data_communication,
        transfer=links.receive_seconds(received / nodes, received - received / nodes),
    )


def columns_seconds(
    batch: CallRows, columns: int, ranks: int, links: Links, *, crosses_nodes: bool
) -> CallSeconds:
    """Seconds of the columns of response tokens that a call reads.

    Args:
        batch: of the call.
        columns: columns with a value per token.
        ranks: ranks that share them.
        links: of their pool.
        crosses_nodes: True if they come from other nodes.
    """
    size = columns * batch.rows * batch.response.mean * COLUMN_BYTES / ranks
    seconds = DISPATCH_SECONDS + size / STORE_BYTES_PER_SECOND
    if crosses_nodes:
        seconds += links.send_seconds(size, crosses_nodes=True)
    return CallSeconds(transfer=seconds)


def _shares_masters(model: RoleModel) -> bool:
    return model.is_trained and model.distributed_optimizer


def _written(model: RoleModel, links: Links) -> CallSeconds:
    """Seconds to rebuild the computation's weights from master weights."""
    # FSDP casts weights for each pass, so it has no others to rebuild.
    if model.engine is TrainingEngineType.FSDP or not model.is_trained:
        return CallSeconds()
    num_parameters = max(stage_parameters(model, stage) for stage in (0, model.mesh.pipeline - 1))
    stepped = num_parameters / (model.mesh.data if _shares_masters(model) else 1)
    gathered = 0.0
    if _shares_masters(model):
        group = links.data_group(model.mesh)
        gathered = links.all_gather_seconds(num_parameters * model.compute_bytes, group)
    return CallSeconds(
        memory=write_seconds(stepped, model.compute_bytes, links), data_communication=gathered
    )


class Received(NamedTuple):
    """Elements that a rank generates with, by where they come from."""

    kept: float
    within: float
    """Elements from other ranks of its node."""
    between: float
    """Elements from other nodes."""

    @property
    def needed(self) -> float:
        """The sum."""
        return self.kept + self.within + self.between


class ReshardTraffic(NamedTuple):
    """Elements that cross links in a reshard."""

    within: float
    """Within nodes, for the rank with the most."""
    between: float
    """Between nodes, for the rank with the most."""
    needed: float
    """Upper bound of the elements that a rank generates with."""


@lru_cache(maxsize=16384)
def reshard_seconds(model: TrainedModel, engines: Mesh, links: Links) -> CallSeconds:
    """Seconds of a reshard of a role's weights.

    Args:
        model: as its ranks train it.
        engines: the ranks that generate.
        links: of their pool.
    """
    traffic = reshard_traffic(model, engines, links.devices_per_node)
    hardware, number = links.hardware, model.number_bytes
    rounds = -(-(traffic.within + traffic.between) // TRANSFER_BUCKET_ELEMENTS)
    is_fsdp = model.engine is TrainingEngineType.FSDP
    tensors = sum(weights.number for weights in all_weights(model.shape))
    moves = traffic.within + traffic.between > 0
    kept_seconds = KEPT_TENSOR_KERNELS * hardware.eager_kernel_seconds
    trained = model.shape.num_parameters / num_training_layouts(model.mesh, model.engine)
    # Needed weights are gathered or copied (2 b) and read for checksums (b); trained ones are read
    # for checksums.
    moved = 3 * traffic.needed * number + trained * (FLOAT32_BYTES if is_fsdp else number)
    return CallSeconds(
        transfer=links.receive_seconds(traffic.within * number, traffic.between * number)
        + rounds * hardware.collective_seconds,
        memory=hardware.memory_seconds(moved),
        launch=tensors * (MOVED_TENSOR_SECONDS if moves else kept_seconds),
    )


def release_seconds(released_bytes: float, links: Links) -> CallSeconds:
    """Seconds in which an engine releases memory on each of its devices, and maps it again.

    Args:
        released_bytes: of weights and cache.
        links: of its pool.
    """
    # Only GPUs' engines map memory.
    if links.hardware.device is not Device.GPU:
        return CallSeconds()
    seconds = SLEEP_SECONDS_PER_GIB + WAKE_SECONDS_PER_GIB
    return CallSeconds(launch=released_bytes / GIB * seconds)


@lru_cache(maxsize=16384)
def reshard_traffic(model: TrainedModel, engines: Mesh, devices_per_node: int) -> ReshardTraffic:
    """Traffic of a reshard; arguments as for `reshard_seconds`, with the devices of a node."""
    ranks = [
        received
        for node in _nodes(engines, devices_per_node)
        for received in received_on(model, engines, node, devices_per_node)
    ]
    # The larger counts: what the fullest rank receives, or what each training rank sends on
    # average. `spread` scales the sum over the counted ranks to that mean.
    spread = len(engines.ranks) / len(ranks) / len(model.mesh.ranks)
    return ReshardTraffic(
        within=max(max(r.within for r in ranks), sum(r.within for r in ranks) * spread),
        between=max(max(r.between for r in ranks), sum(r.between for r in ranks) * spread),
        needed=max(r.needed for r in ranks),
    )


def received_on(
    model: TrainedModel, engines: Mesh, node: int, devices_per_node: int
) -> list[Received]:
    """Elements that each generating rank of a node gets, by where they come from.

    Args:
        model: as its ranks train it.
        engines: the ranks that generate.
        node: one of theirs.
        devices_per_node: of the pool.
    """
    here = range(node * devices_per_node, (node + 1) * devices_per_node)
    indexes = {rank: engines.tensor_index(rank) for rank in here if rank in engines.ranks}
    layouts = num_training_layouts(model.mesh, model.engine)
    layout_of_rank = {
        rank: (rank - model.mesh.first_rank) % layouts for rank in here if rank in model.mesh.ranks
    }
    counts = list(indexes.values())
    received = []
    on_node: dict[int, float] = {}
    for rank, index in indexes.items():
        if index not in on_node:
            on_node[index] = _trained_elements(
                model, engines.tensor, index, frozenset(layout_of_rank.values())
            )
        needed = _needed(model.shape, engines.tensor, index)
        own = frozenset({layout_of_rank[rank]} if rank in layout_of_rank else ())
        kept = _trained_elements(model, engines.tensor, index, own)
        # Weights come to a node once and are forwarded there: its ranks with equal parts share
        # them.
        between = (needed - on_node[index]) / counts.count(index)
        received.append(Received(kept, max(0.0, needed - kept - between), between))
    return received


def _nodes(engines: Mesh, devices_per_node: int) -> Iterable[int]:
    # Parts repeat from node to node, so a few stand for all.
    first, last = engines.ranks.start, engines.ranks.stop - 1
    nodes = range(first // devices_per_node, last // devices_per_node + 1)
    return sorted({*nodes[:2], nodes[len(nodes) // 2], nodes[-1]})


@lru_cache(maxsize=16384)
def _needed(shape: DecoderShape, tensor: int, index: int) -> int:
    """Elements of an engine's part."""
    heads = shape.num_key_value_heads
    return sum(
        weights.number * weights.tensor_part(index, tensor, heads).num_elements
        for weights in all_weights(shape)
    )


@lru_cache(maxsize=16384)
def _trained_elements(
    model: TrainedModel, tensor: int, index: int, indices: frozenset[int]
) -> float:
    """Elements of an engine's part that training ranks at some indices have together."""
    heads = model.shape.num_key_value_heads
    seen: set[tuple[str, int, Part]] = set()
    total = 0
    # Equal parts of the same layers count once.
    for index_ in indices:
        for weights, part in trained_weights(model.shape, model.mesh, model.engine, index_):
            stage = 0 if weights.name == EMBEDDING else index_ // model.mesh.tensor
            if model.engine is TrainingEngineType.FSDP:
                stage = 0
            if (weights.name, stage, part) in seen:
                continue
            seen.add((weights.name, stage, part))
            total += weights.number * part.overlap(weights.tensor_part(index, tensor, heads))
    return total
