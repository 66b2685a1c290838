"""Which rank sends what to whom so that one layout becomes another. Pure: equal on all ranks.

Tensors that all ranks hold alike, before and after, are planned together: the work does not grow
with the number of layers. Nor is a list made of every move of every rank; it can be had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.layout import Layout, TensorGroup, alike
from rlhf_runtime.reshard.partition import Partition, partition
from rlhf_runtime.reshard.senders import SenderBalance, Traffic
from rlhf_runtime.reshard.slices import TensorSlice, are_disjoint
from rlhf_runtime.reshard.topology import Topology

ITEMS_PER_RANK = 16
"""Into about so many items what a rank wants of alike tensors is divided among several senders."""


class Move(NamedTuple):
    """A part of a tensor that goes from one rank to another, or stays on its rank."""

    source_rank: int
    target_rank: int
    name: str
    box: TensorSlice


class Route(NamedTuple):
    """A part of every tensor of a batch that goes from one rank to another, or stays there."""

    source_rank: int
    target_rank: int
    box: TensorSlice


@dataclass(frozen=True)
class Batch:
    """Tensors whose parts go the same ways."""

    names: tuple[str, ...]
    local: tuple[Route, ...]
    """From a rank's source pieces to its own target pieces."""
    direct: tuple[Route, ...]
    """From a rank's source pieces to another's target pieces."""
    forwarded: tuple[Route, ...]
    """From a rank's target pieces, where it was received, to those of others on its node."""

    def moves(self, routes: Iterable[Route]) -> Iterator[Move]:
        """Every tensor's moves along some of the routes."""
        for name in self.names:
            for source, target, box in routes:
                yield Move(source, target, name, box)


@dataclass(frozen=True)
class ReshardPlan:
    """How one layout becomes another: first local and direct moves, then those that forward."""

    topology: Topology
    batches: tuple[Batch, ...]
    traffic: Traffic
    """What each rank sends, receives and keeps, in elements."""

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
        """What a rank copies within itself."""
        for batch in self.batches:
            yield from batch.moves([route for route in batch.local if route.target_rank == rank])


def plan_reshard(source: Layout, target: Layout, topology: Topology | None = None) -> ReshardPlan:
    """Plan how every target piece is put together from source pieces.

    Each part comes from the rank itself if it holds it, else from a rank of its node. What no rank
    of a node holds is sent there once, to one of the ranks that want it, which forwards it to the
    others. Among several senders the one that sends least so far over such links is taken, then the
    lowest rank; among those that can receive for a node the one that has received least.

    Args:
        source: who holds what now.
        target: who shall hold what; a subset of the source's tensors will do.
        topology: the node of each rank; None if all are on one.

    Returns:
        The plan.

    Raises:
        PlanError: the layouts differ in ranks, in a tensor's shape, a tensor has no source, or a
            rank wants an element twice.

    Source: HybridFlow (arXiv 2409.19256), section 5; ReaL (arXiv 2406.14088), section 5.
    """
    topology = topology or Topology.regular(source.world_size)
    _check_fit(source, target, topology)
    balance = SenderBalance(topology)
    batches: list[Batch] = []
    for names, held, wanted in alike(source, target):
        _check_wanted_once(wanted)
        cut = partition(held, wanted)
        for some in _portions(names, cut, topology):
            batches.append(_plan_batch(some, cut, balance))
    return ReshardPlan(topology, tuple(batches), balance.traffic())


def _plan_batch(names: tuple[str, ...], cut: Partition, balance: SenderBalance) -> Batch:
    """Choose senders for alike tensors, and count what they send."""
    direct: list[Route] = []
    forwarded: list[Route] = []
    for box, holders, wanted_by in cut.parts:
        volume = box.volume * len(names)
        near = balance.topology.by_node(holders)
        for node, asking in balance.topology.by_node(wanted_by).items():
            if node in near:
                for rank in asking:
                    direct.append(Route(balance.send_within(near[node], rank, volume), rank, box))
                continue
            sender, receiver = balance.send_between(holders, asking, volume)
            direct.append(Route(sender, receiver, box))
            for rank in asking:
                if rank != receiver:
                    forwarded.append(
                        Route(balance.send_within([receiver], rank, volume), rank, box)
                    )
    for rank, box in cut.local:
        balance.keep(rank, box.volume * len(names))
    local = tuple(Route(rank, rank, box) for rank, box in cut.local)
    return Batch(names, local, tuple(direct), tuple(forwarded))


def _portions(
    names: tuple[str, ...], cut: Partition, topology: Topology
) -> Iterator[tuple[str, ...]]:
    """Alike tensors in as many portions as it takes to use several senders evenly; mostly one."""
    num_portions = 1
    if any(_has_choice(part.holders, part.wanted_by, topology) for part in cut.parts):
        num_ranks = len({rank for part in cut.parts for rank in part.wanted_by})
        items = sum(len(part.wanted_by) for part in cut.parts) // num_ranks
        num_portions = min(len(names), -(-ITEMS_PER_RANK // items))
    for index in range(num_portions):
        first, last = (len(names) * i // num_portions for i in (index, index + 1))
        yield names[first:last]


def _has_choice(holders: tuple[int, ...], wanted_by: tuple[int, ...], topology: Topology) -> bool:
    """Whether anybody could get a part in several ways."""
    near = topology.by_node(holders)
    return any(
        len(near[node]) > 1 if node in near else len(holders) > 1 or len(asking) > 1
        for node, asking in topology.by_node(wanted_by).items()
    )


def _check_fit(source: Layout, target: Layout, topology: Topology) -> None:
    if not source.world_size == target.world_size == topology.world_size:
        raise PlanError(
            f"layouts of different worlds: got {source.world_size} source ranks, "
            f"{target.world_size} target ranks and nodes of {topology.world_size}; list every rank "
            "of the pool in both, with no pieces where it holds nothing"
        )
    for name, shape in target.shapes.items():
        if name not in source.shapes:
            raise PlanError(
                f"tensor without a source: got {name!r} in the target only; drop it there or add "
                "its pieces to the source"
            )
        if tuple(source.shapes[name]) != tuple(shape):
            raise PlanError(
                f"tensor {name!r} has two shapes: got {source.shapes[name]} in the source and "
                f"{shape} in the target; use the full unpadded shape in both"
            )


def _check_wanted_once(wanted: TensorGroup) -> None:
    for ranks, boxes in wanted.shares:
        if len(boxes) > 1 and not are_disjoint(boxes):
            raise PlanError(
                f"elements that are wanted twice: got {list(boxes)} of {wanted.names[0]!r} on rank "
                f"{ranks[0]}, allowed boxes that do not overlap; list every element once"
            )
