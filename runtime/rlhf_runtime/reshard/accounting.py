"""Costs of reshards per rank, in the terms of HybridFlow's table 2, for comparisons.

Numbers are elements. `reshard_costs` is for plans that move only differences, `gathering_costs` for
the usual method, which brings the full model to every rank of a group and cuts it there.
"""

from __future__ import annotations

from typing import NamedTuple

from rlhf_runtime.reshard.layout import Layout, Piece, Pieces, TensorGroup, common_groups
from rlhf_runtime.reshard.plan import ReshardPlan, plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.topology import Topology
from rlhf_sizing.weights import tensor_part


class RankCost(NamedTuple):
    """One rank's cost of a transition.

    Source: HybridFlow (arXiv 2409.19256), section 5.4, table 2.
    """

    received_within: int
    """Elements from other ranks of its node."""
    received_between: int
    """Elements from other nodes."""
    peak: int
    """Peak of resident parameters, if source elements that the target also has share its storage or
    are freed; staging buffers come on top."""
    redundant: int
    """Source elements outside the rank's target pieces. They stay in memory while the target is in
    use."""

    @property
    def received(self) -> int:
        """Elements from all other ranks."""
        return self.received_within + self.received_between


def reshard_costs(source: Layout, target: Layout, plan: ReshardPlan) -> tuple[RankCost, ...]:
    """Each rank's cost of a plan. Assumes that a rank's source pieces are disjoint."""
    costs = []
    traffic = plan.traffic
    for rank in range(plan.world_size):
        redundant = source.num_elements(rank) - traffic.kept[rank]
        # Kept elements share the target's storage, so that only redundant ones are extra.
        peak = target.num_elements(rank) + redundant
        received = traffic.received_within[rank], traffic.received_between[rank]
        costs.append(RankCost(*received, peak, redundant))
    return tuple(costs)


def gathering_costs(
    source: Layout, target: Layout, topology: Topology | None = None
) -> tuple[RankCost, ...]:
    """Each rank's cost of gathering all full tensors on all ranks, and keeping the target's slices.

    With FSDP's or ZeRO's source this is DeepSpeed-Chat's method, with a tensor- and
    pipeline-parallel one the method that HybridFlow's paper calls vanilla.
    """
    full_pieces = tuple(
        Piece(name, TensorSlice.full(shape)) for name, shape in target.shapes.items()
    )
    full = Layout(target.shapes, (full_pieces,) * source.world_size)
    gathered = reshard_costs(source, full, plan_reshard(source, full, topology))
    kept = plan_reshard(source, target, topology).traffic.kept
    return tuple(
        cost._replace(redundant=source.num_elements(rank) - kept[rank])
        for rank, cost in enumerate(gathered)
    )


def tensors_by_cut(source: Layout, target: Layout) -> dict[str, tuple[str, ...]]:
    """Tensor names by their cut on either side, such as `rows in 8 -> rows in 2`."""
    cuts: dict[str, list[str]] = {}
    for names, source_group, target_group in common_groups(source, target):
        cut = f"{_describe_cut(source_group)} -> {_describe_cut(target_group)}"
        cuts.setdefault(cut, []).extend(names)
    return {cut: tuple(names) for cut, names in cuts.items()}


def select_tensors(layout: Layout, names: tuple[str, ...]) -> Layout:
    """A layout of some of the tensors."""
    selected = set(names)
    # Replicas share a tuple of pieces: by identity it stays shared in the result.
    by_identity = {
        id(pieces): tuple(piece for piece in pieces if piece.name in selected)
        for pieces in layout.pieces
    }
    shapes = {name: layout.shapes[name] for name in names}
    return Layout(shapes, tuple(by_identity[id(pieces)] for pieces in layout.pieces))


def _describe_cut(group: TensorGroup) -> str:
    boxes = list(group.holders)
    dims = [
        dim
        for dim, length in enumerate(group.shape)
        if any(box.shape[dim] != length for box in boxes)
    ]
    text = "and ".join({0: "rows ", 1: "columns "}.get(dim, f"dimension {dim} ") for dim in dims)
    return f"{text}in {len(boxes)}" if dims else "whole"


def tensor_parallel_pieces(
    shapes: dict[str, tuple[int, ...]], index: int, size: int, num_key_value_heads: int
) -> Pieces:
    """The pieces of one rank of a tensor-parallel group, without an engine.

    Args:
        shapes: the full shapes, by Hugging Face name.
        index: the rank's index in its group.
        size: ranks in the group; it divides every dimension that is cut.
        num_key_value_heads: if fewer than ranks, several ranks have each head.

    Returns:
        One piece of every tensor. All ranks have uncut tensors, such as norms.
    """
    return tuple(
        Piece(name, _to_slice(shape, *tensor_part(name, shape, index, size, num_key_value_heads)))
        for name, shape in shapes.items()
    )


def _to_slice(shape: tuple[int, ...], rows: range, columns: range) -> TensorSlice:
    ranges = (rows, columns)[: len(shape)]
    return TensorSlice(tuple(indices.start for indices in ranges), tuple(map(len, ranges)))
