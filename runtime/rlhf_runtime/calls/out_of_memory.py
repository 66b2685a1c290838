"""Out-of-memory errors of ranks: recognize them, and compare the plan's estimate with the usage."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.calls import CallKind, Phase
from rlhf_api.plan import RolePlan
from rlhf_api.plan_memory import MemoryItem, MemoryPlan, MemoryUse
from rlhf_api.plan_text import describe_item, format_bytes
from rlhf_flow.step.calls import ModelCall

# Names of Python's error and of torch's.
NAMES = frozenset({"MemoryError", "OutOfMemoryError"})
# Part of the RuntimeError's text that torch raises on CPUs.
CPU_ALLOCATOR = "DefaultCPUAllocator"

_MORE_DEVICES = "take more devices, which share the training state"
_LARGER_CUT = (
    "take more devices (with engine Megatron also raise training.parallelism) or a smaller model"
)
_SMALLER_PARTS = "lower training.microBatchTokens"

_CHANGES: Mapping[MemoryUse, str] = {
    MemoryUse.MASTER_WEIGHTS: _MORE_DEVICES,
    MemoryUse.OPTIMIZER: _MORE_DEVICES,
    MemoryUse.GRADIENTS: _LARGER_CUT,
    MemoryUse.WEIGHTS: _LARGER_CUT,
    MemoryUse.GATHERED: "take a smaller model",
    MemoryUse.ACTIVATIONS: _SMALLER_PARTS,
    MemoryUse.LOGITS: _SMALLER_PARTS,
    MemoryUse.MASKS: _SMALLER_PARTS,
    MemoryUse.TRANSFER: "take devices with more memory",
    MemoryUse.GENERATION_WEIGHTS: "raise rollout.parallelism.tensor",
    MemoryUse.PACKED_WEIGHTS: "raise rollout.parallelism.tensor",
    MemoryUse.KV_CACHE: "lower rollout.kvCacheMemory, or raise rollout.parallelism.tensor",
    MemoryUse.CHECKPOINT: _MORE_DEVICES,
    MemoryUse.OVERHEAD: "take devices with more memory, or fewer processes on a machine",
    MemoryUse.MARGIN: "take devices with more memory",
    MemoryUse.GRAPHS: "take devices with more memory",
    MemoryUse.STANDBY: "set failurePolicy.standby to false",
}
_CHANGES_OF_GENERATION: Mapping[MemoryUse, str] = {
    MemoryUse.ACTIVATIONS: "raise rollout.parallelism.tensor",
    MemoryUse.LOGITS: "lower rollout.maxConcurrentSequences",
}


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error reports exhausted memory."""
    return type(error).__name__ in NAMES or CPU_ALLOCATOR in str(error)


def out_of_memory_text(
    memory: MemoryPlan,
    planned: RolePlan | None,
    call: ModelCall,
    step: int,
    rank: int,
    used_bytes: int,
    resident_bytes_by_use: Mapping[tuple[str, MemoryUse], int],
    error: BaseException,
) -> str:
    """Describe estimate, measurement and remedy.

    Args:
        memory: the plan for the rank's device.
        planned: plan of the call's role; None: the call has no role.
        call: the call that failed.
        step: the training step.
        rank: the global rank.
        used_bytes: memory in use by the process, on a GPU by its device.
        resident_bytes_by_use: bytes of engines, by role and use.
        error: the error that was raised.
    """
    phases = {Phase(role=call.role, kind=call.kind)} if call.role else set()
    # The largest item comes first: the remedy is about it.
    items = sorted(
        (item for item in memory.items if phases & {*item.phases}), key=lambda item: -item.bytes
    )
    parts = "; ".join(_compared(item, resident_bytes_by_use) for item in items)
    todo = _change(items[0], call.kind, planned) if items else "use more devices"
    return (
        f"rank {rank} ran out of memory in {call.id}, step {step}: got {format_bytes(used_bytes)} "
        f"in use, expected {format_bytes(sum(item.bytes for item in items))} of "
        f"{format_bytes(memory.capacity_bytes)} ({parts}); {todo}; "
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
    )


def _change(item: MemoryItem, kind: CallKind, planned: RolePlan | None) -> str:
    """Return the remedy for the largest item of a call."""
    what = item.what
    if kind is CallKind.GENERATE and what in _CHANGES_OF_GENERATION:
        return _CHANGES_OF_GENERATION[what]
    keeps = planned is not None and not planned.recomputes
    if kind is CallKind.TRAIN and what is MemoryUse.ACTIVATIONS and keeps:
        return f"{_SMALLER_PARTS} or set training.activationRecompute"
    return _CHANGES[what]


def _compared(item: MemoryItem, resident_bytes_by_use: Mapping[tuple[str, MemoryUse], int]) -> str:
    measured = resident_bytes_by_use.get((item.role or "", item.what))
    got = "" if measured is None else f", got {format_bytes(measured)}"
    return f"{describe_item(item)} {format_bytes(item.bytes)}{got}"
