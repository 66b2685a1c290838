"""Who sends what several ranks could send: those that have sent least, by kind of link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_runtime.reshard.topology import Topology


class Traffic(NamedTuple):
    """What a plan moves, by rank. Elements, or bytes where that is said."""

    sent_within: tuple[int, ...]
    """To other ranks of the node."""
    sent_between: tuple[int, ...]
    """To other nodes."""
    received_within: tuple[int, ...]
    received_between: tuple[int, ...]
    kept: tuple[int, ...]
    """Taken from the rank's own pieces."""

    @property
    def sent(self) -> tuple[int, ...]:
        """To other ranks."""
        return _added(self.sent_within, self.sent_between)

    @property
    def received(self) -> tuple[int, ...]:
        """From other ranks."""
        return _added(self.received_within, self.received_between)


class SenderBalance:
    """What every rank sends and receives so far, while a plan is made."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        size = topology.world_size
        self._sent_within, self._sent_between = [0] * size, [0] * size
        self._received_within, self._received_between = [0] * size, [0] * size
        self._kept = [0] * size

    def send_within(self, holders: Sequence[int], target: int, volume: int) -> int:
        """Choose who of the holders on a rank's node sends to it, and count that."""
        sender = (
            holders[0] if len(holders) == 1 else min(holders, key=self._sent_within.__getitem__)
        )
        self._sent_within[sender] += volume
        self._received_within[target] += volume
        return sender

    def send_between(
        self, holders: Sequence[int], targets: Sequence[int], volume: int
    ) -> tuple[int, int]:
        """Choose who sends to another node and who of its ranks receives, and count that."""
        sender = min(holders, key=self._sent_between.__getitem__)
        receiver = min(targets, key=self._received_between.__getitem__)
        self._sent_between[sender] += volume
        self._received_between[receiver] += volume
        return sender, receiver

    def keep(self, rank: int, volume: int) -> None:
        """Count what a rank takes from itself."""
        self._kept[rank] += volume

    def traffic(self) -> Traffic:
        """All that was counted."""
        return Traffic(
            tuple(self._sent_within),
            tuple(self._sent_between),
            tuple(self._received_within),
            tuple(self._received_between),
            tuple(self._kept),
        )


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))
