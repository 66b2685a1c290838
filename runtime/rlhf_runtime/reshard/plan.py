"""Which rank sends what to whom so that one layout becomes another. Pure: equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_runtime.reshard.boxes import Box
from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.layout import Layout


class Move(NamedTuple):
    """A part of a tensor that goes from one rank to another, or stays on its rank."""

    source_rank: int
    target_rank: int
    name: str
    box: Box


@dataclass(frozen=True)
class ReshardPlan:
    """All moves between two layouts, ordered by name and target rank, with each rank's elements."""

    world_size: int
    moves: tuple[Move, ...]
    """Between different ranks."""
    copies: tuple[Move, ...]
    """Within a rank."""
    sent: tuple[int, ...]
    """Elements that each rank sends."""
    received: tuple[int, ...]
    """Elements that each rank receives."""
    kept: tuple[int, ...]
    """Elements that each rank takes from itself."""


def plan_reshard(
    source: Layout, target: Layout, node_of: Sequence[int] | None = None
) -> ReshardPlan:
    """Plan how every target piece is put together from source pieces.

    Each part comes from the rank itself if it holds it, else from a rank on the same node, else
    from any; among several from the one that sends least so far, then from the lowest rank.

    Args:
        source: who holds what now.
        target: who shall hold what; a subset of the source's tensors will do.
        node_of: the node of each rank; None if all are on one.

    Returns:
        The plan.

    Raises:
        PlanError: the layouts differ in ranks, in a tensor's shape, or a tensor has no source.

    Source: HybridFlow (arXiv 2409.19256), section 5; ReaL (arXiv 2406.14088), section 5.
    """
    nodes = tuple(node_of) if node_of is not None else (0,) * source.world_size
    _check_fit(source, target, nodes)
    world_size = source.world_size
    sent, received, kept = [0] * world_size, [0] * world_size, [0] * world_size
    moves: list[Move] = []
    copies: list[Move] = []
    for name, parts_of, wanted in _by_name(source, target, nodes):
        for rank, box in wanted:
            for part in parts_of.parts(rank, box):
                if rank in part.holders:
                    kept[rank] += part.volume
                    copies.append(Move(rank, rank, name, part.box))
                    continue
                senders = part.senders(nodes[rank])
                sender = senders[0] if len(senders) == 1 else min(senders, key=sent.__getitem__)
                sent[sender] += part.volume
                received[rank] += part.volume
                moves.append(Move(sender, rank, name, part.box))
    return ReshardPlan(
        world_size, tuple(moves), tuple(copies), tuple(sent), tuple(received), tuple(kept)
    )


class _Part:
    """A part of a wanted box, all of which the same ranks hold."""

    def __init__(self, box: Box, holders: Iterable[int], nodes: tuple[int, ...]) -> None:
        self.box = box
        self.volume = box.volume
        self.holders = frozenset(holders)
        self._everywhere = tuple(sorted(self.holders))
        self._on_node: dict[int, tuple[int, ...]] = {}
        for rank in self._everywhere:
            self._on_node[nodes[rank]] = (*self._on_node.get(nodes[rank], ()), rank)

    def senders(self, node: int) -> tuple[int, ...]:
        """The holders on a node; all holders if none is there."""
        return self._on_node.get(node, self._everywhere)


class _Partition:
    """How wanted boxes fall apart over the source boxes of a tensor.

    Layers repeat: tensors with the same source boxes on the same ranks share one partition.
    """

    def __init__(self, holders: dict[Box, tuple[int, ...]], nodes: tuple[int, ...]) -> None:
        self._holders = holders
        self._nodes = nodes
        self._own: dict[int, list[Box]] = {}
        for box, ranks in holders.items():
            for rank in ranks:
                self._own.setdefault(rank, []).append(box)
        self._wanted: dict[tuple[int, Box], list[_Part]] = {}
        self._parts: dict[tuple[Box, bool], list[_Part]] = {}

    def parts(self, rank: int, box: Box) -> list[_Part]:
        """The parts of the box that a rank wants; the box itself if the rank holds all of it."""
        if (rank, box) not in self._wanted:
            is_whole = self._holds(rank, box)
            if (box, is_whole) not in self._parts:
                self._parts[box, is_whole] = self._uncut(box) if is_whole else self._split(box)
            self._wanted[rank, box] = self._parts[box, is_whole]
        return self._wanted[rank, box]

    def _holds(self, rank: int, box: Box) -> bool:
        return any(mine.contains(box) for mine in self._own.get(rank, ()))

    def _uncut(self, box: Box) -> list[_Part]:
        return [_Part(box, (rank for rank in self._own if self._holds(rank, box)), self._nodes)]

    def _split(self, box: Box) -> list[_Part]:
        """Cut the box along all source boxes; where these overlap, parts have more holders."""
        parts: list[tuple[Box, tuple[int, ...]]] = [(box, ())]
        for source, ranks in self._holders.items():
            if source.intersection(box) is None:
                continue
            cut: list[tuple[Box, tuple[int, ...]]] = []
            for part, holders in parts:
                common = part.intersection(source)
                if common is None:
                    cut.append((part, holders))
                    continue
                cut.append((common, (*holders, *ranks)))
                cut.extend((rest, holders) for rest in part.difference(common))
            parts = cut
        return [_Part(part, holders, self._nodes) for part, holders in sorted(parts)]


def _by_name(
    source: Layout, target: Layout, nodes: tuple[int, ...]
) -> Iterator[tuple[str, _Partition, list[tuple[int, Box]]]]:
    """Every wanted tensor with its partition and the (rank, box) pairs that want it."""
    wanted: dict[str, list[tuple[int, Box]]] = {name: [] for name in target.shapes}
    for rank, pieces in enumerate(target.pieces):
        for name, box in pieces:
            if 0 not in box.shape:
                wanted[name].append((rank, box))
    holders = source.holders()
    partitions: dict[tuple[tuple[Box, tuple[int, ...]], ...], _Partition] = {}
    for name in sorted(wanted):
        pattern = tuple(holders[name].items())
        if pattern not in partitions:
            partitions[pattern] = _Partition(holders[name], nodes)
        yield name, partitions[pattern], wanted[name]


def _check_fit(source: Layout, target: Layout, nodes: tuple[int, ...]) -> None:
    if not source.world_size == target.world_size == len(nodes):
        raise PlanError(
            f"layouts of different worlds: got {source.world_size} source ranks, "
            f"{target.world_size} target ranks and nodes of {len(nodes)}; list every rank of the "
            "pool in both, with no pieces where it holds nothing"
        )
    for name, shape in target.shapes.items():
        if name not in source.shapes:
            raise PlanError(
                f"tensor without a source: got {name!r} in the target only; drop it there or add "
                "its pieces to the source"
            )
        if source.shapes[name] != shape:
            raise PlanError(
                f"tensor {name!r} has two shapes: got {source.shapes[name]} in the source and "
                f"{shape} in the target; use the full unpadded shape in both"
            )
