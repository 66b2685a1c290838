"""Reshard plans: which rank sends what to whom so that one layout becomes another. Pure.

All ranks compute equal plans. Tensors with the same distribution before and after are planned
together, so the work does not grow with the number of layers; the moves of single tensors are
listed only on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rlhf_runtime.reshard.errors import InvalidReshard
from rlhf_runtime.reshard.layout import Layout, TensorGroup, common_groups
from rlhf_runtime.reshard.slices import TensorSlice, are_disjoint
from rlhf_runtime.reshard.topology import SenderBalance, Topology, Traffic

ITEMS_PER_RANK = 16
"""Items into which a rank's demand from similar tensors is split, to use several senders evenly."""


class Move(NamedTuple):
    """A slice of a tensor that goes from one rank to another, or stays on its rank."""

    source_rank: int
    target_rank: int
    name: str
    box: TensorSlice


class Route(NamedTuple):
    """A slice of every tensor of a batch that goes from one rank to another, or stays there."""

    source_rank: int
    target_rank: int
    box: TensorSlice


@dataclass(frozen=True)
class TensorBatch:
    """Tensors whose slices take the same routes."""

    names: tuple[str, ...]
    local: tuple[Route, ...]
    """Copies of a rank's source pieces into its own target pieces."""
    direct: tuple[Route, ...]
    """Source pieces of a rank, sent to target pieces of another."""
    forwarded: tuple[Route, ...]
    """Received target pieces of a rank, sent on to other ranks of its node."""

    def moves(self, routes: Iterable[Route]) -> Iterator[Move]:
        """Every tensor's moves along some of the routes."""
        for name in self.names:
            for source, target, box in routes:
                yield Move(source, target, name, box)


@dataclass(frozen=True)
class ReshardPlan:
    """All moves from one layout to another: first local and direct ones, then forwarded ones."""

    topology: Topology
    batches: tuple[TensorBatch, ...]
    traffic: Traffic
    """Elements that each rank sends, receives and keeps."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @cached_property
    def copies(self) -> tuple[Move, ...]:
        """All moves within a rank."""
        return tuple(move for batch in self.batches for move in batch.moves(batch.local))

    @cached_property
    def direct(self) -> tuple[Move, ...]:
        """All moves of source pieces to other ranks."""
        return tuple(move for batch in self.batches for move in batch.moves(batch.direct))

    @cached_property
    def forwarded(self) -> tuple[Move, ...]:
        """All moves of received pieces to other ranks of a node."""
        return tuple(move for batch in self.batches for move in batch.moves(batch.forwarded))

    def local_moves(self, rank: int) -> Iterator[Move]:
        """The moves within one rank."""
        for batch in self.batches:
            yield from batch.moves([route for route in batch.local if route.target_rank == rank])


def plan_reshard(source: Layout, target: Layout, topology: Topology | None = None) -> ReshardPlan:
    """Plan the moves that fill every target piece from source pieces.

    A slice comes from the rank itself if it has it, else from a rank of its node. A slice that no
    rank of a node has is sent there once, to one of the ranks that need it, which forwards it to
    the others. Among several senders the plan takes the one that has sent least over such links,
    then the lowest rank; among several receivers of a node the one that has received least.

    Args:
        source: the present layout.
        target: the required layout; may contain a subset of the source's tensors.
        topology: the node of each rank; None if all are on one.

    Returns:
        The plan.

    Raises:
        InvalidReshard: the layouts differ in ranks, in a tensor's shape, a tensor has no source, or
            a rank lists an element twice in the target.

    Source: HybridFlow (arXiv 2409.19256), section 5; ReaL (arXiv 2406.14088), section 5.
    """
    topology = topology or Topology.regular(source.world_size)
    _check_compatible(source, target, topology)
    balance = SenderBalance(topology)
    batches: list[TensorBatch] = []
    # Choices depend on earlier ones: all ranks run this loop in the same order.
    for names, source_group, target_group in common_groups(source, target):
        _check_no_overlap(target_group)
        demand = partition(source_group, target_group)
        for batch_names in _split_names(names, demand, topology):
            batches.append(_plan_batch(batch_names, demand, balance))
    return ReshardPlan(topology, tuple(batches), balance.traffic())


def _plan_batch(names: tuple[str, ...], demand: Demand, balance: SenderBalance) -> TensorBatch:
    """Choose senders for tensors of one distribution, and count their volumes."""
    direct: list[Route] = []
    forwarded: list[Route] = []
    for box, holders, requesters in demand.remote:
        volume = box.volume * len(names)
        near = balance.topology.group_by_node(holders)
        for node, node_requesters in balance.topology.group_by_node(requesters).items():
            if node in near:  # links within a node are fast: nothing is forwarded
                for rank in node_requesters:
                    direct.append(Route(balance.send_within(near[node], rank, volume), rank, box))
                continue
            # Links between nodes are slow: the slice crosses once and is forwarded from there.
            sender, receiver = balance.send_between(holders, node_requesters, volume)
            direct.append(Route(sender, receiver, box))
            for rank in node_requesters:
                if rank != receiver:
                    forwarder = balance.send_within([receiver], rank, volume)
                    forwarded.append(Route(forwarder, rank, box))
    for rank, box in demand.local:
        balance.keep(rank, box.volume * len(names))
    local = tuple(Route(rank, rank, box) for rank, box in demand.local)
    return TensorBatch(names, local, tuple(direct), tuple(forwarded))


def _split_names(
    names: tuple[str, ...], demand: Demand, topology: Topology
) -> Iterator[tuple[str, ...]]:
    """Split tensors of one distribution into batches, so that several senders are used evenly.

    One batch if no slice has several possible senders or receivers.
    """
    # Senders are chosen per batch and slice: one batch of many layers would burden one sender.
    num_batches = 1
    if any(_has_choice(region.holders, region.requesters, topology) for region in demand.remote):
        num_ranks = len({rank for region in demand.remote for rank in region.requesters})
        items = sum(len(region.requesters) for region in demand.remote) // num_ranks
        num_batches = min(len(names), -(-ITEMS_PER_RANK // items))
    for index in range(num_batches):
        first, last = (len(names) * i // num_batches for i in (index, index + 1))
        yield names[first:last]


def _has_choice(holders: tuple[int, ...], requesters: tuple[int, ...], topology: Topology) -> bool:
    """True if a requester could get the slice over several routes."""
    near = topology.group_by_node(holders)
    return any(
        len(near[node]) > 1 if node in near else len(holders) > 1 or len(ranks) > 1
        for node, ranks in topology.group_by_node(requesters).items()
    )


def _check_compatible(source: Layout, target: Layout, topology: Topology) -> None:
    if not source.world_size == target.world_size == topology.world_size:
        raise InvalidReshard(
            f"layouts of different worlds: got {source.world_size} source ranks, "
            f"{target.world_size} target ranks and nodes of {topology.world_size}; list every rank "
            "of the pool in both, with no pieces where it holds nothing"
        )
    for name, shape in target.shapes.items():
        if name not in source.shapes:
            raise InvalidReshard(
                f"tensor without a source: got {name!r} in the target only; drop it there or add "
                "its pieces to the source"
            )
        if tuple(source.shapes[name]) != tuple(shape):
            raise InvalidReshard(
                f"tensor {name!r} has two shapes: got {source.shapes[name]} in the source and "
                f"{shape} in the target; use the full unpadded shape in both"
            )


def _check_no_overlap(target: TensorGroup) -> None:
    for ranks, boxes in target.rank_slices:
        if len(boxes) > 1 and not are_disjoint(boxes):
            raise InvalidReshard(
                f"elements that a rank needs twice: got {list(boxes)} of {target.names[0]!r} on "
                f"rank {ranks[0]}, allowed boxes that do not overlap; list every element once"
            )


class Region(NamedTuple):
    """A slice of a tensor with one set of holders and one set of requesters."""

    box: TensorSlice
    holders: tuple[int, ...]
    """Ascending ranks."""
    requesters: tuple[int, ...]
    """Ascending ranks that need the slice and do not hold it."""


class Demand(NamedTuple):
    """All slices of a tensor that ranks need in the target layout."""

    local: tuple[tuple[int, TensorSlice], ...]
    """Ranks, and slices that they copy from their own source pieces."""
    remote: tuple[Region, ...]
    """Disjoint slices that come from other ranks."""


SliceHolders = tuple[TensorSlice, tuple[int, ...]]
"""A slice and its ascending ranks."""


def partition(source: TensorGroup, target: TensorGroup) -> Demand:
    """Intersect the target's slices with the source's, and find holders and requesters of each
    part.

    A rank that has a complete target slice in one source piece copies it uncut.
    """
    local: list[tuple[int, TensorSlice]] = []
    needed: list[SliceHolders] = []
    for box, ranks in target.holders.items():
        # A rank with the complete slice needs no other: cutting would only make more moves.
        able = {
            rank for own, holders in source.holders.items() if own.contains(box) for rank in holders
        }
        local.extend((rank, box) for rank in ranks if rank in able)
        if others := tuple(rank for rank in ranks if rank not in able):
            needed.append((box, others))
    remote: list[Region] = []
    for box, holders in _atoms(source, [box for box, _ in needed]):
        requesters = {rank for outer, ranks in needed if outer.contains(box) for rank in ranks}
        local.extend((rank, box) for rank in requesters.intersection(holders))
        if others := tuple(sorted(requesters.difference(holders))):
            remote.append(Region(box, holders, others))
    # Sorted, because the order of sets may differ between ranks.
    return Demand(tuple(sorted(local)), tuple(sorted(remote)))


def _atoms(source: TensorGroup, needed: list[TensorSlice]) -> list[SliceHolders]:
    """The tensor in disjoint boxes, each inside or outside every box of source and target."""
    atoms: list[SliceHolders] = list(source.holders.items())
    # Overlapping source boxes are cut first, so that every atom has one set of holders.
    if not source.is_disjoint:
        atoms = [(TensorSlice.full(source.shape), ())]
        for box, ranks in source.holders.items():
            atoms = _cut(atoms, box, ranks)
    for box in needed:
        atoms = _cut(atoms, box)
    return atoms


def _cut(
    atoms: list[SliceHolders], box: TensorSlice, holders: tuple[int, ...] = ()
) -> list[SliceHolders]:
    """Cut atoms along a box; those inside it get more holders."""
    result: list[SliceHolders] = []
    for atom, ranks in atoms:
        common = atom.intersection(box)
        if common is None:
            result.append((atom, ranks))
            continue
        result.append((common, tuple(sorted({*ranks, *holders})) if holders else ranks))
        if common != atom:
            result.extend((rest, ranks) for rest in atom.difference(common))
    return result
