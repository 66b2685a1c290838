"""Phases by their texts, for tests of what memory holds when."""

from __future__ import annotations

from rlhf_api.calls import IDLE, CallKind, Phase
from rlhf_api.plan_memory import MemoryItem, MemoryPlan


def phases_of(*texts: str) -> tuple[Phase, ...]:
    """Those that people see so, such as actor.train or idle."""
    found = []
    for text in texts:
        role, _, kind = text.partition(".")
        found.append(Phase(role=role, kind=CallKind[kind.upper()]) if kind else IDLE)
    return tuple(found)


def names_of(item: MemoryItem) -> tuple[str, ...]:
    """The phases of an item, as people see them."""
    return tuple(str(phase) for phase in item.phases)


def peaks_of(memory: MemoryPlan) -> dict[str, int]:
    """What is held in each phase, by what people see."""
    return {str(peak.phase): peak.bytes for peak in memory.peaks}
