"""Exchanges the ranks' layouts, so that all of them compute the same plan."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import NamedTuple

import torch.distributed as dist

from rlhf_runtime.reshard.layout import Layout, Piece, Pieces
from rlhf_runtime.reshard.topology import Topology, this_node
from rlhf_runtime.reshard.views import Views


class GatheredLayouts(NamedTuple):
    """The inputs of a plan, equal on all ranks."""

    source: Layout
    target: Layout
    topology: Topology


def gather_layouts(
    source: Views, target: Views, group: dist.ProcessGroup | None
) -> GatheredLayouts:
    """Both layouts of a group's ranks, and the nodes of the ranks; collective.

    The full shape of a tensor is the bounding box of all ranks' pieces.

    Args:
        source: this rank's present pieces.
        target: this rank's required pieces.
        group: the ranks; None for a world of one.

    Raises:
        LayoutError: pieces do not make up their tensors.
    """
    # Pickled here, not by `all_gather_object`, so that equal layouts are recognized by their bytes.
    own_source, own_target = map(pickle.dumps, (list_pieces(source), list_pieces(target)))
    messages = [(own_source, own_target, this_node())]
    if group is not None:
        messages *= dist.get_world_size(group)
        dist.all_gather_object(messages, messages[0], group)
    # Replicas send equal bytes: each distinct message is read once, and then shared.
    distinct = {pickled for first, second, _ in messages for pickled in (first, second)}
    pieces: dict[bytes, Pieces] = {pickled: pickle.loads(pickled) for pickled in distinct}
    sources = tuple(pieces[pickled] for pickled, _, _ in messages)
    targets = tuple(pieces[pickled] for _, pickled, _ in messages)
    return GatheredLayouts(
        Layout(_full_shapes(sources), sources),
        Layout(_full_shapes(targets), targets),
        Topology.from_nodes([node for *_, node in messages]),
    )


def gather_pieces(views: Views, group: dist.ProcessGroup) -> list[Pieces]:
    """The pieces of each of a group's ranks; collective."""
    own = list_pieces(views)
    gathered = [own] * dist.get_world_size(group)
    if len(gathered) > 1:
        dist.all_gather_object(gathered, own, group)
    return gathered


def list_pieces(views: Views) -> Pieces:
    """A rank's pieces, for a layout."""
    return tuple(Piece(name, view.box) for name, parts in views.items() for view in parts)


def _full_shapes(pieces: Iterable[Pieces]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for rank_pieces in {id(rank_pieces): rank_pieces for rank_pieces in pieces}.values():
        for name, box in rank_pieces:
            shapes[name] = tuple(map(max, shapes.get(name, box.stop), box.stop))
    return shapes
