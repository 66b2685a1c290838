"""What the ranks of a transfer must know of each other before the first byte moves."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rlhf_runtime.reshard.errors import TransferError
from rlhf_runtime.reshard.plan import ReshardPlan
from rlhf_runtime.reshard.views import Views, dtypes_of


def agree(
    plan: ReshardPlan,
    rank: int,
    target_views: Views,
    group: dist.ProcessGroup | None,
    bucket_elements: int,
) -> dict[str, torch.dtype]:
    """Exchange the target's dtypes and check that all ranks mean the same transfer; collective.

    Returns:
        The target's dtype of every name.

    Raises:
        TransferError: on all ranks alike: a rank is not where the plan has it, plans or bucket
            sizes differ, or a name has two dtypes.
    """
    world_size = dist.get_world_size(group)
    if (plan.world_size, rank) != (world_size, dist.get_rank(group)):
        raise TransferError(
            f"the group is not the plan's world: got rank {rank} of a plan for {plan.world_size} "
            f"ranks in a group where this is rank {dist.get_rank(group)} of {world_size}; pass the "
            "group of the plan's ranks"
        )
    own = (_summary(plan, bucket_elements), dtypes_of(target_views))
    gathered: list[tuple[tuple[object, ...], dict[str, torch.dtype]]] = [own] * world_size
    dist.all_gather_object(gathered, own, group=group)
    dtypes: dict[str, torch.dtype] = {}
    for peer, (summary, peer_dtypes) in enumerate(gathered):
        if summary != gathered[0][0]:
            raise TransferError(
                f"ranks have different transfers: got another plan or bucket size on rank {peer} "
                "than on rank 0; plan from the same layouts on all ranks"
            )
        for name, dtype in peer_dtypes.items():
            if dtypes.setdefault(name, dtype) != dtype:
                raise TransferError(
                    f"target dtypes of {name!r} differ between ranks: got {dtypes[name]} and, on "
                    f"rank {peer}, {dtype}; use one dtype per tensor"
                )
    return dtypes


def _summary(plan: ReshardPlan, bucket_elements: int) -> tuple[object, ...]:
    """Small, and different for all but contrived pairs of plans."""
    last = plan.batches[-1:]
    return (len(plan.batches), last, plan.topology, plan.traffic, bucket_elements)
