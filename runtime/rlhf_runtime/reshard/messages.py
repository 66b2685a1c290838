"""Messages: rounds of a transfer bound to a rank's storage.

Both ends of a message derive its contents from the plan and the target's dtypes. Large slices
travel alone: directly from and into the rank's storage if they are contiguous there and have the
message's dtype. Small, scattered or cast slices go through a staging buffer; slices for several
ranks are packed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_runtime.reshard.plan import Move
from rlhf_runtime.reshard.rounds import Round
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.transport import Message
from rlhf_runtime.reshard.views import Views, slice_view

ALONE_BYTES = 1 << 16
"""Slices of at least 64 KiB travel alone; smaller ones for the same rank share a message."""
ALIGNMENT = 8
"""Bytes of the widest dtype."""


class MessageContents(NamedTuple):
    """The slices in one message."""

    peer: int
    dtype: torch.dtype
    parts: tuple[tuple[str, TensorSlice], ...]


@dataclass
class Direction:
    """A rank's messages of one round in one direction."""

    messages: list[Message] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    """Staged slices in the rank's own storage."""
    slots: list[Tensor] = field(default_factory=list)
    """The same slices in the staging buffer."""

    def pack(self) -> None:
        """Copy from the storage into the staging buffer."""
        copy_all(self.slots, self.parts)

    def unpack(self) -> None:
        """Copy from the staging buffer into the storage."""
        copy_all(self.parts, self.slots)


class StagingBuffer:
    """Memory for staged messages, shared by all rounds."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.num_bytes = 0
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def allocate(self, num_bytes: int) -> None:
        """Create the buffer; call it before `slot`."""
        self.num_bytes = num_bytes
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def reserve(self) -> None:
        """Allocate the memory again if it was released."""
        self._buffer.untyped_storage().resize_(self.num_bytes)

    def release(self) -> None:
        """Free the memory; slots stay valid for the next reservation."""
        # Resizing the storage keeps the tensors that were cut from it.
        self._buffer.untyped_storage().resize_(0)

    def slot(self, offset: int, num_elements: int, dtype: torch.dtype) -> Tensor:
        """A view of some elements; the offset is in bytes."""
        return self._buffer[offset : offset + num_elements * dtype.itemsize].view(dtype)


class Exchange(NamedTuple):
    """One round of a rank."""

    forwards: bool
    """True if it sends slices that earlier rounds have received."""
    outgoing: Direction
    incoming: Direction


def bind(
    rounds: Sequence[Round],
    rank: int,
    source_views: Views,
    target_views: Views,
    dtypes: Mapping[str, torch.dtype],
    staging: StagingBuffer,
) -> list[Exchange]:
    """Bind every round's messages to the rank's views, and allocate the staging buffer.

    Raises:
        TransferError: a move lies outside the views.
    """
    drafts = []
    for forwards, moves in rounds:
        sent = [m for m in moves if m.source_rank == rank]
        received = [m for m in moves if m.target_rank == rank]
        views = target_views if forwards else source_views
        outgoing = _UnplacedDirection(_contents(sent, dtypes, True), views, rank, staging.device)
        incoming = _UnplacedDirection(
            _contents(received, dtypes, False), target_views, rank, staging.device
        )
        drafts.append((forwards, outgoing, incoming))
    sizes = [outgoing.num_bytes + incoming.num_bytes for _, outgoing, incoming in drafts]
    # Rounds use the halves in turns, so that one is packed while another is in flight.
    halves = [max(sizes[first::2], default=0) for first in (0, 1)]
    staging.allocate(sum(halves))
    starts = [0, halves[0]] * len(drafts)
    return [
        Exchange(
            forwards,
            outgoing.bind_slots(staging, start),
            incoming.bind_slots(staging, start + outgoing.num_bytes),
        )
        for (forwards, outgoing, incoming), start in zip(drafts, starts, strict=False)
    ]


class _UnplacedDirection:
    """A direction with a known staging size, but no offset in the buffer yet."""

    def __init__(
        self,
        contents: Iterable[MessageContents],
        views: Views,
        rank: int,
        device: torch.device,
    ) -> None:
        self._bound = [
            (message, [slice_view(views, name, box, rank) for name, box in message.parts])
            for message in contents
        ]
        self._device = device
        # By slices, not by messages: messages with equal slices share one slot.
        size = sum(
            {
                message.parts: sum(t.numel() for t in tensors) * message.dtype.itemsize
                for message, tensors in self._bound
                if not self._is_direct(message, tensors)
            }.values()
        )
        self.num_bytes = -(-size // ALIGNMENT) * ALIGNMENT

    def bind_slots(self, staging: StagingBuffer, offset: int) -> Direction:
        """The direction, with slots in the staging buffer from an offset in bytes."""
        direction = Direction()
        staged: dict[tuple[tuple[str, TensorSlice], ...], Tensor] = {}
        for message, tensors in self._bound:
            if self._is_direct(message, tensors):
                direction.messages.append(Message(message.peer, tensors[0].view(-1)))
                continue
            if message.parts not in staged:
                flat = staging.slot(offset, sum(t.numel() for t in tensors), message.dtype)
                offset += flat.nbytes
                staged[message.parts] = flat
                slots = torch.split(flat, [t.numel() for t in tensors])
                direction.parts.extend(tensors)
                direction.slots.extend(s.view(t.shape) for s, t in zip(slots, tensors, strict=True))
            direction.messages.append(Message(message.peer, staged[message.parts]))
        return direction

    def _is_direct(self, message: MessageContents, tensors: Sequence[Tensor]) -> bool:
        return (
            len(tensors) == 1
            and tensors[0].is_contiguous()
            and tensors[0].dtype == message.dtype
            and tensors[0].device == self._device
        )


def _contents(
    moves: Sequence[Move], dtypes: Mapping[str, torch.dtype], outgoing: bool
) -> list[MessageContents]:
    """Messages of one direction; those of a pair of ranks in an order that both derive."""
    alone: list[MessageContents] = []
    together: dict[tuple[int, torch.dtype], list[tuple[str, TensorSlice]]] = {}
    for move in moves:
        peer = move.target_rank if outgoing else move.source_rank
        dtype, part = dtypes[move.name], (move.name, move.box)
        if move.box.volume * dtype.itemsize >= ALONE_BYTES:
            alone.append(MessageContents(peer, dtype, (part,)))
        else:
            together.setdefault((peer, dtype), []).append(part)
    packed = [
        MessageContents(peer, dtype, tuple(parts)) for (peer, dtype), parts in together.items()
    ]
    # The widest dtypes come first, so that every slot is aligned.
    return sorted([*alone, *packed], key=lambda message: -message.dtype.itemsize)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensor by tensor, casting if dtypes differ; one launch on GPUs where possible."""
    if targets:
        torch._foreach_copy_(targets, sources)
