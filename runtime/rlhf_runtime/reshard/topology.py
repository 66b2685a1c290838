"""Which ranks share a node: what a plan knows of the links between ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from platform import node as host_name

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux: different on every machine and after every boot, equal in all containers of one."""


@dataclass(frozen=True)
class Topology:
    """The node of each rank. Links within a node are taken to be faster than those between."""

    nodes: tuple[int, ...]
    """Node by rank; nodes count from 0 in the order of their first ranks."""

    @classmethod
    def of(cls, nodes: Sequence[Hashable]) -> Topology:
        """From anything that names each rank's node."""
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(node, len(numbers)) for node in nodes))

    @classmethod
    def regular(cls, world_size: int, ranks_per_node: int | None = None) -> Topology:
        """Neighbouring ranks share a node, so many on each; all on one if None."""
        return cls.of([rank // (ranks_per_node or world_size) for rank in range(world_size)])

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    def same_node(self, rank: int, other: int) -> bool:
        """Whether two ranks share a node."""
        return self.nodes[rank] == self.nodes[other]

    def by_node(self, ranks: Sequence[int]) -> dict[int, list[int]]:
        """The ranks on each node, in their order."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.nodes[rank], []).append(rank)
        return found


def this_node() -> str:
    """A name of the machine that this process runs on, equal for all processes there."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else host_name()
