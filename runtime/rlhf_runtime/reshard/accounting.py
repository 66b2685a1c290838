"""What a reshard costs each rank in memory, in the terms of HybridFlow's table 2."""

from __future__ import annotations

from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import ReshardPlan


def redundant_elements(source: Layout, plan: ReshardPlan, rank: int) -> int:
    """Source elements of a rank that its target pieces do not hold.

    They must be kept beside the target while it is in use, if the source shall be restored from it.
    0 with HybridFlow's grouping. The rank's source pieces are taken to be disjoint, and no target
    element to be wanted twice.

    Source: HybridFlow (arXiv 2409.19256), section 5.4, table 2.
    """
    return source.num_elements(rank) - plan.kept[rank]


def peak_elements(source: Layout, target: Layout, plan: ReshardPlan, rank: int) -> int:
    """Parameter elements that a rank holds at most: its target pieces and the redundant elements.

    Reached when what the target covers of the source is freed or shares its storage; staging
    buffers come on top. Assumptions as in `redundant_elements`.

    Source: HybridFlow (arXiv 2409.19256), section 5.4, table 2.
    """
    return target.num_elements(rank) + redundant_elements(source, plan, rank)
