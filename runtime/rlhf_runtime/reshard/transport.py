"""Transports: carry bytes between the ranks of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Message(NamedTuple):
    """Elements for a rank, or from it."""

    peer: int
    """The other rank's number within the transfer."""
    elements: Tensor
    """Contiguous; read or written in place."""


class Delivery(Protocol):
    """Messages in flight."""

    def wait(self) -> None:
        """Return once incoming messages are complete and outgoing memory may change.

        On GPUs this holds for work launched afterwards."""


class Transport(Protocol):
    """Delivers messages between ranks."""

    def begin(self, outgoing: Sequence[Message], incoming: Sequence[Message]) -> Delivery:
        """Start to send and receive. Messages of a pair of ranks arrive in the order of sending."""


class GroupTransport:
    """A torch process group: gloo or NCCL. All messages are in flight at once."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Connect the ranks; collective on GPUs.

        Args:
            group: the ranks of a transfer; None for all.
            device: device of the messages: NCCL serves GPUs.
        """
        self._group = group
        if device.type == "cuda":  # NCCL connects at the first call, which all ranks must make
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    def begin(self, outgoing: Sequence[Message], incoming: Sequence[Message]) -> Delivery:
        """See Transport."""
        operations = [
            dist.P2POp(operation, elements, group=self._group, group_peer=peer)
            for operation, messages in ((dist.irecv, incoming), (dist.isend, outgoing))
            for peer, elements in messages
        ]
        return _Works(dist.batch_isend_irecv(operations) if operations else [])


class _Works:
    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()
