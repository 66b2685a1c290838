"""The message of a plan that does not fit: the sum, item by item, and what to change."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import CallKind, phase_name
from rlhf_api.plan_memory import MemoryItem, MemoryWhat, sum_by_phase
from rlhf_flow.planning.memory import GIB, MIB

_MORE_DEVICES = "take more devices, which share the training state"
_LARGER_CUT = (
    "take more devices (with engine Megatron also raise training.parallelism) or a smaller model"
)

_ADVICE: Mapping[MemoryWhat, str] = {
    MemoryWhat.MASTER_WEIGHTS: _MORE_DEVICES,
    MemoryWhat.OPTIMIZER: _MORE_DEVICES,
    MemoryWhat.GRADIENTS: _LARGER_CUT,
    MemoryWhat.WEIGHTS: _LARGER_CUT,
    MemoryWhat.GATHERED: "take a smaller model",
    MemoryWhat.ACTIVATIONS: "lower microBatchTokens",
    MemoryWhat.LOGITS: "lower microBatchTokens",
    MemoryWhat.MASKS: "lower microBatchTokens",
    MemoryWhat.TRANSFER: "take devices with more memory",
    MemoryWhat.GENERATION_WEIGHTS: "raise rollout.parallelism.tensor",
    MemoryWhat.KV_CACHE: "lower rollout.maxPromptTokens, rollout.maxResponseTokens or "
    "rollout.kvCacheMemory, or raise rollout.parallelism.tensor",
    MemoryWhat.CHECKPOINT: _MORE_DEVICES,
    MemoryWhat.OVERHEAD: "take devices with more memory, or fewer processes on a machine",
    MemoryWhat.STANDBY: "set failurePolicy.standby to false",
}

_ADVICE_IN_PHASE: Mapping[tuple[MemoryWhat, CallKind], str] = {
    (MemoryWhat.ACTIVATIONS, CallKind.TRAIN): "lower training.microBatchTokens or set "
    "training.activationRecompute",
    (MemoryWhat.ACTIVATIONS, CallKind.GENERATE): "raise rollout.parallelism.tensor",
    (MemoryWhat.LOGITS, CallKind.GENERATE): "lower rollout.maxConcurrentSequences",
}


def advice(item: MemoryItem, phase: str) -> str:
    """What to change about an item that takes much in a phase."""
    for (what, kind), text in _ADVICE_IN_PHASE.items():
        if item.what is what and phase.endswith(phase_name("", kind)):
            return text
    return _ADVICE[item.what]


def format_bytes(size: int) -> str:
    """A size in GiB, or in MiB where it is small."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"


def describe_item(item: MemoryItem) -> str:
    """What an item is, such as `actor Optimizer`."""
    return f"{item.role or 'process'} {item.what.value}"


def overflow_message(items: tuple[MemoryItem, ...], capacity: int, setting: str) -> str:
    """Why items do not fit: the fullest phase's sum and what to change about its largest parts.

    Args:
        items: of the plan that comes closest.
        capacity: bytes of a device.
        setting: what that plan is, in words.
    """
    sums = sum_by_phase(items)
    phase = max(sums, key=lambda name: sums[name])
    there = sorted((item for item in items if phase in item.phases), key=lambda i: -i.bytes)
    width = max(len(describe_item(item)) for item in there)
    table = [f"  {describe_item(i).ljust(width)}  {format_bytes(i.bytes):>14}" for i in there]
    total = [
        f"  {'sum'.ljust(width)}  {format_bytes(sums[phase]):>14}",
        f"  {'device'.ljust(width)}  {format_bytes(capacity):>14}",
    ]
    changes = dict.fromkeys(advice(item, phase) for item in there[:3])
    return "\n".join(
        [
            f"the job does not fit: got {format_bytes(sums[phase])} on each device during {phase}, "
            f"allowed {format_bytes(capacity)} ({setting})",
            *table,
            *total,
            "; or ".join(changes),
        ]
    )
