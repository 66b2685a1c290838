"""A way to generate on a pool: the engines of each role, and what memory then holds."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.plan import Mesh
from rlhf_flow.planning.device_groups import GroupMemory


@dataclass(frozen=True)
class EngineChoice:
    """The engines of one role."""

    role: str
    mesh: Mesh
    """Their ranks: an engine spans its tensor axis."""
    kv_cache_bytes: int
    """On each device."""
    release: bool
    """Whether its weights and cache are freed while no call generates."""


@dataclass(frozen=True)
class GenerationChoice:
    """One way to generate on a pool, and what memory then holds."""

    engines: tuple[EngineChoice, ...]
    """Of each role that generates there."""
    release: bool
    """Whether weights and caches are freed while no call generates, where others use the device."""
    memory: tuple[GroupMemory, ...]
    """Of each group of the pool's devices, generation's items among them."""

    @property
    def fits(self) -> bool:
        """Whether no device has too little memory."""
        return self.fullest.excess_bytes <= 0

    @property
    def fullest(self) -> GroupMemory:
        """The group that has the least left."""
        return max(self.memory, key=lambda each: each.excess_bytes)

    def spare_bytes(self, role: str) -> int:
        """What is left on the fullest device that holds a role's cache."""
        (engine,) = (each for each in self.engines if each.role == role)
        return min(
            each.group.pool.memory_bytes_per_device - each.held_peak(role, engine.release)
            for each in self.memory
            if role in each.group.generating
        )
