"""Memory of one device: what each role's weights, training and inference need, by its engine."""

from __future__ import annotations

from collections.abc import Collection

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.plan import OffloadDepth
from rlhf_api.plan_memory import MemoryItem, MemoryUse
from rlhf_api.spec.models import TrainingEngineType
from rlhf_flow.planning.fsdp_memory import fsdp_checkpoint_bytes, fsdp_items
from rlhf_flow.planning.megatron_memory import megatron_checkpoint_bytes, megatron_items
from rlhf_flow.planning.memory import RoleModel, RolePhases


def role_items(
    model: RoleModel,
    phases: tuple[Phase, ...],
    depth: OffloadDepth = OffloadDepth.NOTHING,
    own: Collection[Phase] = (),
) -> tuple[MemoryItem, ...]:
    """What a role needs on each of its devices, apart from generation.

    Args:
        model: the role.
        phases: all phases of these devices.
        depth: how much of it leaves them while others work there.
        own: the phases in which it is whole, where some of it leaves.
    """
    infer, train = (
        (phase,) if (phase := call_phase(model.role, kind)) in phases else ()
        for kind in (CallKind.INFER, CallKind.TRAIN)
    )
    whole = tuple(phase for phase in phases if phase in own)
    held = whole if depth is OffloadDepth.EVERYTHING else phases
    derived = phases if depth is OffloadDepth.NOTHING else whole
    role_phases = RolePhases(held, derived, infer, train)
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    items = megatron_items(model, role_phases) if is_megatron else fsdp_items(model, role_phases)
    return tuple(
        MemoryItem(role=model.role, what=what, bytes=size, phases=where)
        for what, size, where in items
        if size and where
    )


def checkpoint_items(model: RoleModel, phases: tuple[Phase, ...]) -> tuple[MemoryItem, ...]:
    """The copy of a saved role's state, where devices and host share their memory."""
    if not model.is_saved:
        return ()
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    size = megatron_checkpoint_bytes(model) if is_megatron else fsdp_checkpoint_bytes(model)
    item = MemoryItem(role=model.role, what=MemoryUse.CHECKPOINT, bytes=size, phases=phases)
    return (item,)
