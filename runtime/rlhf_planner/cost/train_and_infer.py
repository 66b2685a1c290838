"""Times of TRAIN and INFER calls.

A TRAIN call makes its updates one after the other. Each is all micro-batches of its part of the
batch, forward and backward, and an optimizer step. An INFER call runs every micro-batch forward
once and keeps nothing. See fsdp.py and megatron.py.
"""

from __future__ import annotations

from functools import lru_cache

from rlhf_api.spec.models import TrainingEngineType
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.fsdp import fsdp_inference, fsdp_update
from rlhf_planner.cost.layers import LayerSeconds
from rlhf_planner.cost.megatron import megatron_inference, megatron_update
from rlhf_planner.cost.micro_batches import CallRows, replica_micro_batches
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.memory.role_model import RoleModel


@lru_cache(maxsize=16384)
def train_seconds(
    model: RoleModel,
    batch: CallRows,
    layers: LayerSeconds,
    links: Links,
    mini_batches: int = 1,
    epochs: int = 1,
) -> CallSeconds:
    """Seconds of a call that trains a role.

    Args:
        model: the role; its mesh, micro-batches, recomputation and engine count.
        batch: of the call, over all replicas.
        layers: of the role's model on its devices.
        links: of its pool.
        mini_batches: parts of the batch, each for an optimizer step.
        epochs: passes over the batch.
    """
    part = replica_micro_batches(batch, model, mini_batches)
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    update = (megatron_update if is_megatron else fsdp_update)(model, part, layers, links)
    # Updates have equal parts of the batch, so one of them is computed.
    number = mini_batches * epochs
    return update if number == 1 else update.times(number)


@lru_cache(maxsize=16384)
def infer_seconds(
    model: RoleModel, batch: CallRows, layers: LayerSeconds, links: Links
) -> CallSeconds:
    """Seconds of a call that runs a role forward.

    Args:
        model: the role.
        batch: of the call, over all replicas.
        layers: of the role's model on its devices.
        links: of its pool.
    """
    part = replica_micro_batches(batch, model)
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    return (megatron_inference if is_megatron else fsdp_inference)(model, part, layers, links)
