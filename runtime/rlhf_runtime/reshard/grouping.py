"""Which ranks generate together: the tensor groups into which the fewest elements must move.

Training engines cut a model in their own way. A rank that becomes the part of a generation group
that it already holds most of receives least. Under Megatron that is HybridFlow's strided grouping,
under FSDP2 ranks a whole part apart.

Source: HybridFlow (arXiv 2409.19256), section 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.reshard.boxes import Box, uncovered
from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.layout import Layout, Pieces, alike
from rlhf_runtime.reshard.topology import Topology

Groups = tuple[tuple[int, ...], ...]
"""Ranks of each group, ascending: a rank's place in its group is its part of the model."""


def choose_groups(
    source: Layout, parts: Sequence[Pieces], topology: Topology | None = None
) -> Groups:
    """The regular grouping into which the fewest elements move from a layout.

    Groups that span nodes come last, whatever they save: generation speaks within a group for every
    token, a reshard happens once per update. Among equals the closest ranks are taken.

    Args:
        source: who holds what in training.
        parts: what each rank of a generation group shall hold; as many as a group has ranks.
        topology: the node of each rank; None if all are on one.

    Raises:
        PlanError: the ranks cannot be divided into groups of that size.
    """
    topology = topology or Topology.regular(source.world_size)
    kept = _kept(source, Layout(source.shapes, tuple(parts)))

    def cost(groups: Groups) -> tuple[int, int, int]:
        spanning = sum(len(topology.by_node(group)) > 1 for group in groups)
        local = sum(kept[rank][index] for group in groups for index, rank in enumerate(group))
        return spanning, -local, groups[0][-1] - groups[0][0]

    return min(regular_groupings(source.world_size, len(parts)), key=cost)


def regular_groupings(world_size: int, group_size: int) -> list[Groups]:
    """All groupings of ranks at one stride; the stride of 1 makes groups of neighbours.

    Raises:
        PlanError: the ranks cannot be divided into groups of that size.
    """
    if group_size < 1 or world_size % group_size:
        raise PlanError(
            f"ranks do not make whole generation groups: got {world_size} ranks and groups of "
            f"{group_size}, allowed sizes that divide {world_size}"
        )
    num_groups = world_size // group_size
    return [
        tuple(
            tuple(block + offset + stride * place for place in range(group_size))
            for block in range(0, world_size, stride * group_size)
            for offset in range(stride)
        )
        for stride in range(1, num_groups + 1)
        if num_groups % stride == 0
    ]


def layout_of(source: Layout, parts: Sequence[Pieces], groups: Groups) -> Layout:
    """The generation layout that groups make of the parts."""
    held = {rank: parts[index] for group in groups for index, rank in enumerate(group)}
    return Layout(source.shapes, tuple(held[rank] for rank in range(source.world_size)))


def _kept(source: Layout, parts: Layout) -> list[list[int]]:
    """Elements of each part that each rank already holds: `[rank][part]`."""
    kept = [[0] * parts.world_size for _ in range(source.world_size)]
    for names, held, wanted in alike(source, parts):
        for ranks, boxes in held.shares:
            for indices, of_part in wanted.shares:
                common = len(names) * sum(_overlap(box, boxes) for box in of_part)
                for rank in ranks:
                    for index in indices:
                        kept[rank][index] += common
    return kept


def _overlap(box: Box, boxes: Sequence[Box]) -> int:
    return box.volume - sum(rest.volume for rest in uncovered(box, boxes))
