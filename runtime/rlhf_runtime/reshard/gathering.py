"""What every rank tells the others of its weights, so that all can make the same plan."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed as dist

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Layout, Piece, Pieces
from rlhf_runtime.reshard.topology import Topology, this_node
from rlhf_runtime.reshard.views import Views

Shapes = Mapping[str, tuple[int, ...]]


class Gathered(NamedTuple):
    """All that a plan is made from, equal on all ranks."""

    source: Layout
    target: Layout
    topology: Topology


def gather_layouts(
    shapes: Shapes, source: Views, target: Views, group: dist.ProcessGroup | None
) -> Gathered:
    """Both layouts of a group's ranks, and which of them share a node; collective.

    Args:
        shapes: the full shapes of the tensors of which this rank has source views, or of all.
        source: this rank's pieces now.
        target: what it shall hold.
        group: the ranks; None for a world of one.

    Raises:
        LayoutError: ranks differ about a shape, or pieces do not make up their tensors.
    """
    own = (dict(shapes), _pieces(source), _pieces(target))
    of_shapes, of_source, of_target = map(pickle.dumps, own)
    said = [(of_shapes, of_source, of_target, this_node())]
    if group is not None:
        said *= dist.get_world_size(group)
        dist.all_gather_object(said, said[0], group)
    # Replicas say the same: each thing is read once, and then shared.
    distinct = {each for one, two, three, _ in said for each in (one, two, three)}
    read = {each: pickle.loads(each) for each in distinct}
    all_shapes: dict[str, tuple[int, ...]] = {}
    for rank, (of_rank, *_) in enumerate(said):
        _merge(all_shapes, read[of_rank], rank)
    sources: tuple[Pieces, ...] = tuple(read[of_rank] for _, of_rank, _, _ in said)
    targets: tuple[Pieces, ...] = tuple(read[of_rank] for _, _, of_rank, _ in said)
    topology = Topology.of([node for *_, node in said])
    return Gathered(Layout(all_shapes, sources), Layout(all_shapes, targets), topology)


def _pieces(views: Views) -> Pieces:
    return tuple(Piece(name, view.box) for name, parts in views.items() for view in parts)


def _merge(all_shapes: dict[str, tuple[int, ...]], shapes: Shapes, rank: int) -> None:
    for name, shape in shapes.items():
        if all_shapes.setdefault(name, tuple(shape)) != tuple(shape):
            raise LayoutError(
                f"ranks differ about a tensor's shape: got {all_shapes[name]} for {name!r} and, on "
                f"rank {rank}, {tuple(shape)}; use the full unpadded shape on all ranks"
            )
