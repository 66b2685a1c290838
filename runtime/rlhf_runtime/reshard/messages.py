"""Rounds of a transfer bound to a rank's storage: what is packed where, and for whom.

Both ends of a message derive its contents from the plan and the target's dtypes. Large parts travel
alone: straight from and into the rank's storage where they are contiguous there and have the dtype
that is sent. What is small, scattered or cast goes through a staging buffer; what several ranks
shall get is packed once.
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
from rlhf_runtime.reshard.views import Views, part_of

ALONE_BYTES = 1 << 16
"""Parts of at least 64 KiB travel alone; smaller ones for the same rank share a message."""
ALIGNMENT = 8
"""Bytes of the widest dtype."""


class Contents(NamedTuple):
    """What is in one message."""

    peer: int
    dtype: torch.dtype
    parts: tuple[tuple[str, TensorSlice], ...]


@dataclass
class Direction:
    """A rank's messages of one round in one direction."""

    messages: list[Message] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    """The rank's own storage of what is staged."""
    slots: list[Tensor] = field(default_factory=list)
    """The same in the staging buffer."""

    def pack(self) -> None:
        """Bring the storage's values into the staging buffer."""
        copy_all(self.slots, self.parts)

    def unpack(self) -> None:
        """Bring the staging buffer's values into the storage."""
        copy_all(self.parts, self.slots)


class Staging:
    """Memory in which messages wait, shared by all rounds."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.num_bytes = 0
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def allocate(self, num_bytes: int) -> None:
        """Make the buffer; before any slot is cut of it."""
        self.num_bytes = num_bytes
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def reserve(self) -> None:
        """Take the memory, if it was released."""
        self._buffer.untyped_storage().resize_(self.num_bytes)

    def release(self) -> None:
        """Give the memory back; views of it stay valid for the next reservation."""
        self._buffer.untyped_storage().resize_(0)

    def slot(self, offset: int, num_elements: int, dtype: torch.dtype) -> Tensor:
        """Elements from a byte on."""
        return self._buffer[offset : offset + num_elements * dtype.itemsize].view(dtype)


class Exchange(NamedTuple):
    """One round of a rank."""

    forwards: bool
    """Whether it sends what rounds that do not forward have brought."""
    outgoing: Direction
    incoming: Direction


def bind(
    rounds: Sequence[Round],
    rank: int,
    source_views: Views,
    target_views: Views,
    dtypes: Mapping[str, torch.dtype],
    staging: Staging,
) -> list[Exchange]:
    """Bind every round's messages to the rank's views, and allocate the staging buffer: a half for
    every other round, so that one may be packed while another is under way.

    Raises:
        TransferError: a move lies outside the views.
    """
    drafts = []
    for forwards, moves in rounds:
        sent = [m for m in moves if m.source_rank == rank]
        received = [m for m in moves if m.target_rank == rank]
        views = target_views if forwards else source_views
        outgoing = _Draft(_contents(sent, dtypes, True), views, rank, staging.device)
        incoming = _Draft(_contents(received, dtypes, False), target_views, rank, staging.device)
        drafts.append((forwards, outgoing, incoming))
    sizes = [o.num_bytes + i.num_bytes for _, o, i in drafts]
    halves = [max(sizes[first::2], default=0) for first in (0, 1)]
    staging.allocate(sum(halves))
    starts = [0, halves[0]] * len(drafts)
    return [
        Exchange(
            forwards,
            outgoing.placed(staging, start),
            incoming.placed(staging, start + outgoing.num_bytes),
        )
        for (forwards, outgoing, incoming), start in zip(drafts, starts, strict=False)
    ]


class _Draft:
    """A direction of which it is known what must be staged, but not where."""

    def __init__(
        self, contents: Iterable[Contents], views: Views, rank: int, device: torch.device
    ) -> None:
        self._bound = [
            (each, [part_of(views, name, box, rank) for name, box in each.parts])
            for each in contents
        ]
        self._device = device
        size = sum(
            {
                each.parts: sum(t.numel() for t in tensors) * each.dtype.itemsize
                for each, tensors in self._bound
                if not self._is_direct(each, tensors)
            }.values()
        )
        self.num_bytes = -(-size // ALIGNMENT) * ALIGNMENT

    def placed(self, staging: Staging, offset: int) -> Direction:
        """The direction, with slots in the staging buffer from a byte on."""
        direction = Direction()
        staged: dict[tuple[tuple[str, TensorSlice], ...], Tensor] = {}
        for each, tensors in self._bound:
            if self._is_direct(each, tensors):
                direction.messages.append(Message(each.peer, tensors[0].view(-1)))
                continue
            if each.parts not in staged:
                flat = staging.slot(offset, sum(t.numel() for t in tensors), each.dtype)
                offset += flat.nbytes
                staged[each.parts] = flat
                slots = torch.split(flat, [t.numel() for t in tensors])
                direction.parts.extend(tensors)
                direction.slots.extend(s.view(t.shape) for s, t in zip(slots, tensors, strict=True))
            direction.messages.append(Message(each.peer, staged[each.parts]))
        return direction

    def _is_direct(self, contents: Contents, tensors: Sequence[Tensor]) -> bool:
        return (
            len(tensors) == 1
            and tensors[0].is_contiguous()
            and tensors[0].dtype == contents.dtype
            and tensors[0].device == self._device
        )


def _contents(
    moves: Sequence[Move], dtypes: Mapping[str, torch.dtype], outgoing: bool
) -> list[Contents]:
    """Messages of one direction; those of a pair of ranks in an order that both derive.

    The widest dtypes come first, so that every slot is aligned.
    """
    alone: list[Contents] = []
    together: dict[tuple[int, torch.dtype], list[tuple[str, TensorSlice]]] = {}
    for move in moves:
        peer = move.target_rank if outgoing else move.source_rank
        dtype, part = dtypes[move.name], (move.name, move.box)
        if move.box.volume * dtype.itemsize >= ALONE_BYTES:
            alone.append(Contents(peer, dtype, (part,)))
        else:
            together.setdefault((peer, dtype), []).append(part)
    packed = [Contents(peer, dtype, tuple(parts)) for (peer, dtype), parts in together.items()]
    return sorted([*alone, *packed], key=lambda each: -each.dtype.itemsize)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensor by tensor, casting where dtypes differ; one launch on GPUs where possible."""
    if targets:
        torch._foreach_copy_(targets, sources)
