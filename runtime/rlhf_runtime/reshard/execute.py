"""Carries out a reshard plan over torch.distributed, straight into the target's views.

What stays on a rank is copied. The rest goes in rounds: packed into one flat staging buffer in the
target's dtype, one all-to-all, unpacked. No full tensor and no second model is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_flow.planning.generation_memory import TRANSFER_BUCKET_ELEMENTS
from rlhf_runtime.reshard.agreement import agree
from rlhf_runtime.reshard.buckets import buckets
from rlhf_runtime.reshard.exchange import Direction, exchanges_of
from rlhf_runtime.reshard.plan import ReshardPlan
from rlhf_runtime.reshard.views import Views, check_views, is_same_memory, part_of


@dataclass(frozen=True)
class TransferStats:
    """What one run moved on this rank."""

    bytes_sent: int
    """Handed to the transport for other ranks."""
    bytes_received: int
    """Taken from the transport."""
    bytes_local: int
    """Copied within the rank."""
    bytes_in_place: int
    """Not touched, because source and target are the same memory."""
    peak_staging_bytes: int
    """Both staging buffers together."""
    seconds: float
    """Wall time; with GPUs until their work is done."""


class PreparedTransfer:
    """A plan bound to a rank's views: indices, buffers and splits are made once, `run` many times.

    Every rank of the group prepares and runs it together. The views must keep their storages, which
    may shrink to nothing and grow again between runs.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        rank: int,
        source_views: Views,
        target_views: Views,
        group: dist.ProcessGroup | None = None,
        bucket_elements: int = TRANSFER_BUCKET_ELEMENTS,
    ) -> None:
        """Bind a plan; collective when the world has more than one rank.

        Args:
            plan: the same on all ranks.
            rank: this rank within the group.
            source_views: this rank's pieces of the plan's source layout.
            target_views: its pieces of the target layout; their dtypes are what is sent.
            group: the ranks of the plan; None for all. Not used in a world of one.
            bucket_elements: bound of each of the two staging buffers, the same on all ranks.

        Raises:
            TransferError: the views do not fit the plan, or the ranks do not agree.
        """
        exchanges = []
        if plan.world_size > 1:
            dtypes = agree(plan, rank, target_views, group, bucket_elements)
            exchanges = exchanges_of(buckets(plan, bucket_elements), dtypes)
        check_views(source_views, rank)
        check_views(target_views, rank)
        self._group = group
        self._devices = _cuda_devices(source_views, target_views)
        self._bind_copies(plan, rank, source_views, target_views)
        device = _staging_device(group, self._devices) if exchanges else torch.device("cpu")
        self._outgoing = Direction(exchanges, source_views, rank, plan.world_size, device, True)
        self._incoming = Direction(exchanges, target_views, rank, plan.world_size, device, False)

    @torch.no_grad()
    def run(self) -> TransferStats:
        """Bring the source's present values into the target; collective."""
        start = perf_counter()
        self._outgoing.reserve()
        self._incoming.reserve()
        _copy_all(self._copy_targets, self._copy_sources)
        for out, into in zip(self._outgoing.packings, self._incoming.packings, strict=True):
            _copy_all(out.slots, out.parts)
            dist.all_to_all_single(into.flat, out.flat, into.splits, out.splits, group=self._group)
            _copy_all(into.parts, into.slots)
        for device in self._devices:
            torch.cuda.synchronize(device)
        return TransferStats(
            bytes_sent=self._outgoing.num_bytes,
            bytes_received=self._incoming.num_bytes,
            bytes_local=self._bytes_local,
            bytes_in_place=self._bytes_in_place,
            peak_staging_bytes=self._outgoing.staging_bytes + self._incoming.staging_bytes,
            seconds=perf_counter() - start,
        )

    def release(self) -> None:
        """Give the staging memory back; the next run takes it again."""
        self._outgoing.release()
        self._incoming.release()

    def _bind_copies(
        self, plan: ReshardPlan, rank: int, source_views: Views, target_views: Views
    ) -> None:
        self._copy_sources: list[Tensor] = []
        self._copy_targets: list[Tensor] = []
        self._bytes_local = self._bytes_in_place = 0
        for move in plan.copies:
            if move.target_rank != rank:
                continue
            source = part_of(source_views, move.name, move.box, rank)
            target = part_of(target_views, move.name, move.box, rank)
            if is_same_memory(source, target):
                self._bytes_in_place += target.nbytes
                continue
            self._bytes_local += target.nbytes
            self._copy_sources.append(source)
            self._copy_targets.append(target)


def execute(
    plan: ReshardPlan,
    rank: int,
    source_views: Views,
    target_views: Views,
    group: dist.ProcessGroup | None = None,
    bucket_elements: int = TRANSFER_BUCKET_ELEMENTS,
) -> TransferStats:
    """Prepare a plan and run it once; arguments and errors as in PreparedTransfer."""
    return PreparedTransfer(plan, rank, source_views, target_views, group, bucket_elements).run()


def _copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensor by tensor, casting where dtypes differ; one launch on GPUs where possible."""
    if targets:
        torch._foreach_copy_(targets, sources)


def _cuda_devices(*views: Views) -> list[torch.device]:
    devices = {view.tensor.device for of_rank in views for vs in of_rank.values() for view in vs}
    return sorted((d for d in devices if d.type == "cuda"), key=str)


def _staging_device(group: dist.ProcessGroup | None, devices: list[torch.device]) -> torch.device:
    """Where the group's transport wants its buffers: on GPUs if NCCL serves theirs."""
    if devices and "cuda:nccl" in dist.get_backend_config(group):
        return devices[0]
    return torch.device("cpu")
