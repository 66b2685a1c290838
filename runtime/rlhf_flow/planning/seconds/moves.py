"""Seconds of what plans put between calls: offloading, copies of weights, columns of data.

    offload, load   bytes of weights, master weights and moments over the host's link; where only
                    what follows from master weights leaves, writing and gathering it anew
    copy            a local copy where both roles are cut alike, else all of a rank's share over the
                    links: of k nodes 1/k within one
    columns         numbers of 4 bytes through the object store and, to other nodes, the network

Source: docs/adr/0021-roles-leave-their-devices.md for what moves.
"""

from __future__ import annotations

from functools import lru_cache

from rlhf_api.calls import IDLE
from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.models import TrainingEngineType
from rlhf_flow.planning.megatron_memory import stage_parameters
from rlhf_flow.planning.memory import FLOAT32_BYTES, RoleModel
from rlhf_flow.planning.offloading import COPIED
from rlhf_flow.planning.role_memory import role_items
from rlhf_flow.planning.seconds.call_seconds import CallSeconds
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.seconds.micro_batches import Batch
from rlhf_flow.planning.seconds.optimizer import write_seconds

DISPATCH_SECONDS = 2e-3
"""From a call's order to its first work on a rank, through Ray. An estimate."""
STORE_BYTES_PER_SECOND = 2e9
"""Of a column into the object store and out of it. An estimate."""
COLUMN_BYTES = 4
"""Of a number of a column, such as a token or a log-probability."""


@lru_cache(maxsize=16384)
def host_copy_bytes(model: RoleModel) -> int:
    """Bytes of a role on each of its devices of which the host has a copy."""
    return sum(item.bytes for item in role_items(model, (IDLE,)) if item.what in COPIED)


def offload_seconds(model: RoleModel, depth: OffloadDepth, links: Links) -> CallSeconds:
    """A role leaves its devices.

    Args:
        model: the role.
        depth: how much of it.
        links: of its pool.
    """
    if depth is not OffloadDepth.EVERYTHING:
        return CallSeconds()
    return CallSeconds(host_copy=links.hardware.host_seconds(host_copy_bytes(model)))


def load_seconds(model: RoleModel, depth: OffloadDepth, links: Links) -> CallSeconds:
    """It comes back; arguments as above."""
    if depth is OffloadDepth.DERIVED:
        return _written(model, links)
    return offload_seconds(model, depth, links)


def copy_seconds(source: RoleModel, target: RoleModel, links: Links) -> CallSeconds:
    """A role takes over another's weights, on the same ranks.

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
    received = own * number
    return CallSeconds(
        memory=memory,
        data_communication=written.data_communication,
        transfer=links.receive_seconds(received / nodes, received - received / nodes),
    )


def columns_seconds(
    batch: Batch, columns: int, ranks: int, links: Links, *, crosses_nodes: bool
) -> CallSeconds:
    """Columns of response tokens that a call reads.

    Args:
        batch: of the call.
        columns: of numbers of tokens that it reads.
        ranks: that share them.
        links: of their pool.
        crosses_nodes: whether they come from other nodes.
    """
    size = columns * batch.rows * batch.response.mean * COLUMN_BYTES / ranks
    seconds = DISPATCH_SECONDS + size / STORE_BYTES_PER_SECOND
    if crosses_nodes:
        seconds += links.send_seconds(size, crosses_nodes=True)
    return CallSeconds(transfer=seconds)


def _shares_masters(model: RoleModel) -> bool:
    return model.is_trained and model.distributed_optimizer


def _written(model: RoleModel, links: Links) -> CallSeconds:
    """Weights of the computation made from master weights; none where they are the same, or where
    FSDP makes them for each pass."""
    if model.engine is TrainingEngineType.FSDP or not model.is_trained:
        return CallSeconds()
    held = max(stage_parameters(model, stage) for stage in (0, model.mesh.pipeline - 1))
    own = held / (model.mesh.data if _shares_masters(model) else 1)
    gathered = 0.0
    if _shares_masters(model):
        group = links.data_group(model.mesh)
        gathered = links.all_gather_seconds(held * model.compute_bytes, group)
    return CallSeconds(
        memory=write_seconds(own, model.compute_bytes, links), data_communication=gathered
    )
