"""Whether the libraries of workers stay in memory between two of their starts."""

from __future__ import annotations

from dataclasses import replace

from rlhf_api.calls import Phase
from rlhf_api.plan import Pool
from rlhf_api.plan_memory import MemoryItem
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.device_groups import GroupMemory
from rlhf_flow.planning.memory import standby_item
from rlhf_flow.planning.problem import Fixed
from rlhf_flow.planning.refusal import format_bytes


def required_standby(fixed: Fixed, pool: Pool, phases: tuple[Phase, ...]) -> tuple[MemoryItem, ...]:
    """What standing by takes of each device where the manifest insists on it."""
    return _items(pool, phases) if fixed.standby else ()


def with_standby(
    fixed: Fixed, memory: tuple[GroupMemory, ...]
) -> tuple[tuple[GroupMemory, ...], bool, str]:
    """Memory with what stands by, whether anything does, and why.

    Nothing else is changed for it: what does not fit beside the rest does not stand by.

    Args:
        fixed: what is decided already.
        memory: of all else, and of what `required_standby` asks for.
    """
    wanted = fixed.standby
    if wanted is not None:
        return memory, wanted, _reason(wanted, "as failurePolicy.standby says")
    more = tuple(
        replace(each, items=each.items + _items(each.group.pool, each.phases)) for each in memory
    )
    if more == memory:
        return memory, True, _reason(True, "in the memory of the host")
    largest = max(each.items[-1].bytes for each in more)
    size = f"{format_bytes(largest)} of each device"
    if all(each.excess_bytes <= 0 for each in more):
        return more, True, _reason(True, f"they take {size}")
    return memory, False, _reason(False, f"{size} do not fit beside all else")


def _items(pool: Pool, phases: tuple[Phase, ...]) -> tuple[MemoryItem, ...]:
    """Memory of devices; that of the host is counted where they are its own."""
    return (standby_item(pool.devices_per_node, phases),) if pool.device is Device.CPU else ()


def _reason(stands_by: bool, why: str) -> str:
    begin = "libraries stand by for" if stands_by else "no libraries stand by for"
    return f"{begin} the next start of workers: {why}"
