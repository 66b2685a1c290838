"""What every rank tells the others of its weights, so that all can make the same plan."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import NamedTuple

import torch.distributed as dist

from rlhf_runtime.reshard.layout import Layout, Piece, Pieces
from rlhf_runtime.reshard.topology import Topology, this_node
from rlhf_runtime.reshard.views import Views


class Gathered(NamedTuple):
    """All that a plan is made from, equal on all ranks."""

    source: Layout
    target: Layout
    topology: Topology


def gather_layouts(source: Views, target: Views, group: dist.ProcessGroup | None) -> Gathered:
    """Both layouts of a group's ranks, and which of them share a node; collective.

    A tensor is as large as all ranks' pieces of it are together.

    Args:
        source: this rank's pieces now.
        target: what it shall hold.
        group: the ranks; None for a world of one.

    Raises:
        LayoutError: pieces do not make up their tensors.
    """
    own = (pieces_of(source), pieces_of(target))
    of_source, of_target = map(pickle.dumps, own)
    said = [(of_source, of_target, this_node())]
    if group is not None:
        said *= dist.get_world_size(group)
        dist.all_gather_object(said, said[0], group)
    # Replicas say the same: each thing is read once, and then shared.
    distinct = {each for one, two, _ in said for each in (one, two)}
    read: dict[bytes, Pieces] = {each: pickle.loads(each) for each in distinct}
    sources = tuple(read[of_rank] for of_rank, _, _ in said)
    targets = tuple(read[of_rank] for _, of_rank, _ in said)
    topology = Topology.of([node for *_, node in said])
    return Gathered(Layout(_shapes(sources), sources), Layout(_shapes(targets), targets), topology)


def gather_pieces(views: Views, group: dist.ProcessGroup) -> list[Pieces]:
    """What the views of each of a group's ranks hold; collective."""
    mine = pieces_of(views)
    held = [mine] * dist.get_world_size(group)
    if len(held) > 1:
        dist.all_gather_object(held, mine, group)
    return held


def pieces_of(views: Views) -> Pieces:
    """What a rank's views hold, for a layout."""
    return tuple(Piece(name, view.box) for name, parts in views.items() for view in parts)


def _shapes(pieces: Iterable[Pieces]) -> dict[str, tuple[int, ...]]:
    """The full shape of every tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for of_rank in {id(each): each for each in pieces}.values():
        for name, box in of_rank:
            shapes[name] = tuple(map(max, shapes.get(name, box.stop), box.stop))
    return shapes
