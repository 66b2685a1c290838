"""What to say when a rank runs out of memory: what was expected, and what was used."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import phase_name
from rlhf_api.plan_memory import MemoryItem, MemoryPlan, MemoryWhat
from rlhf_flow.calls import ModelCall
from rlhf_flow.planning.refusal import advice, describe_item, format_bytes

NAMES = frozenset({"MemoryError", "OutOfMemoryError"})
"""Python's error and torch's."""
CPU_ALLOCATOR = "DefaultCPUAllocator"
"""In the text of the RuntimeError that torch raises on CPUs."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is used up."""
    return type(error).__name__ in NAMES or CPU_ALLOCATOR in str(error)


def out_of_memory_text(
    memory: MemoryPlan,
    call: ModelCall,
    step: int,
    rank: int,
    used_bytes: int,
    held: Mapping[tuple[str, MemoryWhat], int],
    error: BaseException,
) -> str:
    """Estimate against measurement, and what to change.

    Args:
        memory: the plan's, of the rank's device.
        call: during which it happened.
        step: of training.
        rank: to which it happened.
        used_bytes: what the process, or on a GPU its device, held.
        held: bytes of it that can be told apart, by role and use.
        error: what was raised.
    """
    phase = phase_name(call.role, call.kind) if call.role else call.kind.value
    items = sorted(
        (item for item in memory.items if phase in item.phases), key=lambda item: -item.bytes
    )
    parts = "; ".join(_compared(item, held) for item in items)
    todo = advice(items[0], phase) if items else "use more devices"
    return (
        f"rank {rank} ran out of memory in {call.id}, step {step}: got {format_bytes(used_bytes)} "
        f"in use, expected {format_bytes(memory.peaks.get(phase, 0))} of "
        f"{format_bytes(memory.capacity_bytes)} ({parts}); {todo}; "
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
    )


def _compared(item: MemoryItem, held: Mapping[tuple[str, MemoryWhat], int]) -> str:
    """What the plan counts for a use, and what it really takes where that is known."""
    measured = held.get((item.role or "", item.what))
    got = "" if measured is None else f", got {format_bytes(measured)}"
    return f"{describe_item(item)} {format_bytes(item.bytes)}{got}"
