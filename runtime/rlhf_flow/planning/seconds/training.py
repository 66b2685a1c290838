"""Seconds of a TRAIN call.

A call makes its updates one after the other. Each is all micro-batches of its part of the batch,
forward and backward, and an optimizer step: see fsdp.py and megatron.py. Where nothing but products
of matrices counts, 6 FLOP for each weight and token are left of it, 8 with recomputation.
"""

from __future__ import annotations

from functools import lru_cache

from rlhf_api.spec.models import TrainingEngineType
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.seconds.call_seconds import CallSeconds
from rlhf_flow.planning.seconds.fsdp import fsdp_update
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.seconds.megatron import megatron_update
from rlhf_flow.planning.seconds.micro_batches import Batch, replica_micro_batches


@lru_cache(maxsize=16384)
def train_seconds(
    model: RoleModel,
    batch: Batch,
    layers: LayerSeconds,
    links: Links,
    mini_batches: int = 1,
    epochs: int = 1,
) -> CallSeconds:
    """A call that trains a role.

    Args:
        model: the role; its mesh, micro-batches, recomputation and engine count.
        batch: of the call, over all replicas.
        layers: of the role's model on its devices.
        links: of its pool.
        mini_batches: parts of the batch, each for an optimizer step.
        epochs: how often the batch is gone through.
    """
    part = replica_micro_batches(batch, model, mini_batches)
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    update = (megatron_update if is_megatron else fsdp_update)(model, part, layers, links)
    number = mini_batches * epochs
    return update if number == 1 else update.times(number)
