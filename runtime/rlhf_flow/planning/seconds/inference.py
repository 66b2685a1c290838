"""Seconds of an INFER call: every micro-batch forward once, and nothing kept.

FSDP gathers the blocks' weights for each micro-batch, the root's once; Megatron's micro-batches run
through the stages behind each other, (m + p - 1) slots: see fsdp.py and megatron.py.
"""

from __future__ import annotations

from functools import lru_cache

from rlhf_api.spec.models import TrainingEngineType
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.seconds.call_seconds import CallSeconds
from rlhf_flow.planning.seconds.fsdp import fsdp_inference
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.seconds.megatron import megatron_inference
from rlhf_flow.planning.seconds.micro_batches import Batch, replica_micro_batches


@lru_cache(maxsize=16384)
def infer_seconds(
    model: RoleModel, batch: Batch, layers: LayerSeconds, links: Links
) -> CallSeconds:
    """A call that runs a role forward.

    Args:
        model: the role.
        batch: of the call, over all replicas.
        layers: of the role's model on its devices.
        links: of its pool.
    """
    part = replica_micro_batches(batch, model)
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    return (megatron_inference if is_megatron else fsdp_inference)(model, part, layers, links)
