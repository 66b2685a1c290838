"""Nodes of ranks, and how a plan balances its traffic over the links between ranks. Pure, but for
`this_node`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from platform import node as host_name
from typing import NamedTuple

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux: different on every machine and after every boot, equal in all containers of one."""


# Plans take links within a node to be faster than links between nodes.
@dataclass(frozen=True)
class Topology:
    """The node of each rank."""

    nodes: tuple[int, ...]
    """Node by rank; nodes count from 0 in the order of their first ranks."""

    @classmethod
    def from_nodes(cls, nodes: Sequence[Hashable]) -> Topology:
        """Number the nodes, which may have any names; `nodes[rank]`."""
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(node, len(numbers)) for node in nodes))

    @classmethod
    def regular(cls, world_size: int, ranks_per_node: int | None = None) -> Topology:
        """Consecutive ranks share a node, so many on each; None: all are on one."""
        return cls.from_nodes(
            [rank // (ranks_per_node or world_size) for rank in range(world_size)]
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    def same_node(self, rank: int, other: int) -> bool:
        """True if two ranks share a node."""
        return self.nodes[rank] == self.nodes[other]

    def group_by_node(self, ranks: Sequence[int]) -> dict[int, list[int]]:
        """The ranks on each node, in their order."""
        groups: dict[int, list[int]] = {}
        for rank in ranks:
            groups.setdefault(self.nodes[rank], []).append(rank)
        return groups


def this_node() -> str:
    """A name of the machine that this process runs on, equal for all processes there."""
    # Containers of one machine may have different host names.
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else host_name()


class Traffic(NamedTuple):
    """The volume that a plan moves, by rank. In elements unless stated otherwise."""

    sent_within: tuple[int, ...]
    """To other ranks of the node."""
    sent_between: tuple[int, ...]
    """To other nodes."""
    received_within: tuple[int, ...]
    received_between: tuple[int, ...]
    kept: tuple[int, ...]
    """Copied from the rank's own pieces."""

    @property
    def sent(self) -> tuple[int, ...]:
        """Volume sent to all other ranks."""
        return _add(self.sent_within, self.sent_between)

    @property
    def received(self) -> tuple[int, ...]:
        """Volume received from all other ranks."""
        return _add(self.received_within, self.received_between)


class SenderBalance:
    """Chooses among several possible senders the one that has sent least so far.

    Counts links within a node and links between nodes apart. Among equals the first candidate wins.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        size = topology.world_size
        self._sent_within, self._sent_between = [0] * size, [0] * size
        self._received_within, self._received_between = [0] * size, [0] * size
        self._kept = [0] * size

    def send_within(self, holders: Sequence[int], target: int, volume: int) -> int:
        """Choose and count a sender on the target's node; `holders` are all on that node."""
        sender = (
            holders[0] if len(holders) == 1 else min(holders, key=self._sent_within.__getitem__)
        )
        self._sent_within[sender] += volume
        self._received_within[target] += volume
        return sender

    def send_between(
        self, holders: Sequence[int], targets: Sequence[int], volume: int
    ) -> tuple[int, int]:
        """Choose and count a sender, and a receiver among the targets, which are on another
        node."""
        # Links are duplex: the sender is chosen by sent volume, the receiver by received volume.
        sender = min(holders, key=self._sent_between.__getitem__)
        receiver = min(targets, key=self._received_between.__getitem__)
        self._sent_between[sender] += volume
        self._received_between[receiver] += volume
        return sender, receiver

    def keep(self, rank: int, volume: int) -> None:
        """Count a copy within a rank."""
        self._kept[rank] += volume

    def traffic(self) -> Traffic:
        """The volumes counted so far."""
        return Traffic(
            tuple(self._sent_within),
            tuple(self._sent_between),
            tuple(self._received_within),
            tuple(self._received_between),
            tuple(self._kept),
        )


def _add(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))
