"""What a reshard costs each rank, in the terms of HybridFlow's table 2, and by kind of cut.

Numbers are elements. `account` is for plans that move what differs, `account_of_gathering` for the
usual way, which brings the full model to every rank of a group and cuts it there.
"""

from __future__ import annotations

from typing import NamedTuple

from rlhf_runtime.reshard.layout import Layout, Piece, TensorGroup, alike
from rlhf_runtime.reshard.plan import ReshardPlan, plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.topology import Topology


class Account(NamedTuple):
    """One rank's cost of a transition.

    Source: HybridFlow (arXiv 2409.19256), section 5.4, table 2.
    """

    received_within: int
    """From other ranks of its node."""
    received_between: int
    """From other nodes."""
    peak: int
    """Parameters that it holds at most, where what the target covers of the source shares its
    storage or is freed; staging buffers come on top."""
    redundant: int
    """Source elements that its target pieces do not hold: they must be kept beside the target while
    it is in use."""

    @property
    def received(self) -> int:
        """From other ranks."""
        return self.received_within + self.received_between


def account(source: Layout, target: Layout, plan: ReshardPlan) -> tuple[Account, ...]:
    """Each rank's cost of a plan. A rank's source pieces are taken to be disjoint."""
    accounts = []
    traffic = plan.traffic
    for rank in range(plan.world_size):
        redundant = source.num_elements(rank) - traffic.kept[rank]
        peak = target.num_elements(rank) + redundant
        received = traffic.received_within[rank], traffic.received_between[rank]
        accounts.append(Account(*received, peak, redundant))
    return tuple(accounts)


def account_of_gathering(
    source: Layout, target: Layout, topology: Topology | None = None
) -> tuple[Account, ...]:
    """Each rank's cost of bringing all tensors to all ranks whole, and keeping the target's part.

    With FSDP's or ZeRO's source this is what DeepSpeed-Chat does, with a tensor- and
    pipeline-parallel one what HybridFlow's paper calls vanilla.
    """
    everything = tuple(
        Piece(name, TensorSlice.full(shape)) for name, shape in target.shapes.items()
    )
    whole = Layout(target.shapes, (everything,) * source.world_size)
    gathered = account(source, whole, plan_reshard(source, whole, topology))
    kept = plan_reshard(source, target, topology).traffic.kept
    return tuple(
        each._replace(redundant=source.num_elements(rank) - kept[rank])
        for rank, each in enumerate(gathered)
    )


def kinds_of_cut(source: Layout, target: Layout) -> dict[str, tuple[str, ...]]:
    """Tensors by how they are cut on either side, such as `rows in 8 -> rows in 2`."""
    kinds: dict[str, list[str]] = {}
    for names, held, wanted in alike(source, target):
        kinds.setdefault(f"{_cut_of(held)} -> {_cut_of(wanted)}", []).extend(names)
    return {kind: tuple(names) for kind, names in kinds.items()}


def only(layout: Layout, names: tuple[str, ...]) -> Layout:
    """A layout of some of the tensors."""
    wanted = set(names)
    by_identity = {
        id(pieces): tuple(piece for piece in pieces if piece.name in wanted)
        for pieces in layout.pieces
    }
    shapes = {name: layout.shapes[name] for name in names}
    return Layout(shapes, tuple(by_identity[id(pieces)] for pieces in layout.pieces))


def _cut_of(group: TensorGroup) -> str:
    boxes = list(group.holders)
    cut = [
        dim
        for dim, length in enumerate(group.shape)
        if any(box.shape[dim] != length for box in boxes)
    ]
    where = "and ".join({0: "rows ", 1: "columns "}.get(dim, f"dimension {dim} ") for dim in cut)
    return f"{where}in {len(boxes)}" if cut else "whole"
