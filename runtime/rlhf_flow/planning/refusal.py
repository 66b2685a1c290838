"""Sums of memory for people, and that of a plan that does not fit, item by item."""

from __future__ import annotations

from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_flow.planning.memory import GIB, MIB


def format_bytes(size: int) -> str:
    """A size in GiB, or in MiB where it is small."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"


def describe_item(item: MemoryItem) -> str:
    """What an item is, such as `actor Optimizer`."""
    return f"{item.role or 'process'} {item.what.value}"


def overflow_message(items: tuple[MemoryItem, ...], capacity: int, setting: str) -> str:
    """Why items do not fit: the fullest phase's sum.

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
    return "\n".join(
        [
            f"the job does not fit: got {format_bytes(sums[phase])} on each device during {phase}, "
            f"allowed {format_bytes(capacity)} ({setting})",
            *table,
            *total,
        ]
    )
