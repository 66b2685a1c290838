"""The rounds of a transfer bound to staging memory: what is packed where, and for whom.

Both ends of an exchange derive the same order and sizes from the plan and the target's dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_runtime.reshard.plan import Move
from rlhf_runtime.reshard.views import Views, part_of


class Exchange(NamedTuple):
    """The moves of one all-to-all, all of one dtype."""

    dtype: torch.dtype
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Packing:
    """One rank's end of an exchange, in one direction."""

    parts: list[Tensor]
    """The rank's own storage, move by move."""
    slots: list[Tensor]
    """The same moves in the staging buffer, ordered by peer."""
    flat: Tensor
    """The bytes of all slots."""
    splits: list[int]
    """Bytes for each peer."""


class Direction:
    """All exchanges of one rank in one direction, over one staging buffer."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        views: Views,
        rank: int,
        world_size: int,
        device: torch.device,
        outgoing: bool,
    ) -> None:
        """Bind the rank's moves of every exchange.

        Raises:
            TransferError: a move lies outside the views.
        """
        own = [_own_moves(exchange.moves, rank, outgoing) for exchange in exchanges]
        sizes = [_num_bytes(m, e.dtype) for e, m in zip(exchanges, own, strict=True)]
        self.num_bytes = sum(sizes)
        self.staging_bytes = max(sizes, default=0)
        self._buffer = torch.empty(self.staging_bytes, dtype=torch.uint8, device=device)
        self.packings: list[Packing] = []
        for exchange, moves in zip(exchanges, own, strict=True):
            peers = [move.target_rank if outgoing else move.source_rank for move in moves]
            parts = [part_of(views, move.name, move.box, rank) for move in moves]
            self.packings.append(self._pack(moves, parts, peers, exchange.dtype, world_size))

    def reserve(self) -> None:
        """Take the staging memory, if it was released."""
        self._buffer.untyped_storage().resize_(self.staging_bytes)

    def release(self) -> None:
        """Give the staging memory back; its views stay valid for the next reservation."""
        self._buffer.untyped_storage().resize_(0)

    def _pack(
        self,
        moves: Sequence[Move],
        parts: list[Tensor],
        peers: Sequence[int],
        dtype: torch.dtype,
        world_size: int,
    ) -> Packing:
        flat = self._buffer[: _num_bytes(moves, dtype)]
        elements = flat.view(dtype)
        slots: list[Tensor] = []
        splits = [0] * world_size
        offset = 0
        for move, peer in zip(moves, peers, strict=True):
            volume = move.box.volume
            slots.append(elements[offset : offset + volume].view(move.box.shape))
            splits[peer] += volume * dtype.itemsize
            offset += volume
        return Packing(parts, slots, flat, splits)


def exchanges_of(
    rounds: Iterable[Sequence[Move]], dtypes: Mapping[str, torch.dtype]
) -> list[Exchange]:
    """One exchange per round and dtype, in an order that is equal on all ranks."""
    exchanges: list[Exchange] = []
    for moves in rounds:
        by_dtype: dict[torch.dtype, list[Move]] = {}
        for move in moves:
            by_dtype.setdefault(dtypes[move.name], []).append(move)
        exchanges.extend(Exchange(dtype, tuple(of_it)) for dtype, of_it in by_dtype.items())
    return exchanges


def _own_moves(moves: Sequence[Move], rank: int, outgoing: bool) -> list[Move]:
    """A rank's moves ordered by peer, and as planned for each peer."""
    if outgoing:
        return sorted((m for m in moves if m.source_rank == rank), key=lambda m: m.target_rank)
    return sorted((m for m in moves if m.target_rank == rank), key=lambda m: m.source_rank)


def _num_bytes(moves: Iterable[Move], dtype: torch.dtype) -> int:
    return sum(move.box.volume for move in moves) * dtype.itemsize
