"""RankGroup: ranks of a pool that need not be a mesh, such as all that train a role or generate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rlhf_runtime.engines.world import World


@dataclass(frozen=True)
class RankGroup:
    """Ranks that do something together, as one of them sees it."""

    rank: int
    """Its number among them, from 0."""
    size: int
    """How many they are."""
    group: dist.ProcessGroup
    """All of them."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of a small host tensor, equal on all of them."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """The maximum over the ranks of a small host tensor, equal on all of them."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: torch.Tensor, how: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values, op=how, group=self.group)
        return values


def make_rank_groups(
    sets: Iterable[tuple[int, ...]], world: World
) -> Mapping[tuple[int, ...], RankGroup]:
    """The groups of all sets of ranks that a rank is in. Collective: every rank of the pool makes
    each of them, in the same order.

    Args:
        sets: ascending ranks of the pool, the same on all ranks.
        world: the pool's ranks.
    """
    groups = {}
    for ranks in dict.fromkeys(sets):
        group = world.make_group(ranks)
        if world.rank in ranks:
            groups[ranks] = RankGroup(ranks.index(world.rank), len(ranks), group)
    return groups
