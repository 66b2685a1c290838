"""Carries out a reshard plan over torch.distributed, directly into the target's views.

Local slices are copied. All others go from rank to rank in rounds, in the target's dtype: from
storage to storage if both are contiguous, else through a staging buffer of bounded size. While a
round is in flight the next one is packed and the previous one unpacked. There is never a full
tensor nor a second model in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_runtime.reshard.errors import TransferError
from rlhf_runtime.reshard.messages import Exchange, StagingBuffer, bind, copy_all
from rlhf_runtime.reshard.plan import ReshardPlan
from rlhf_runtime.reshard.rounds import plan_rounds
from rlhf_runtime.reshard.transport import Delivery, GroupTransport, Message, Transport
from rlhf_runtime.reshard.views import (
    Views,
    check_views,
    is_same_memory,
    slice_view,
    tensor_dtypes,
)
from rlhf_sizing.limits import TRANSFER_BUCKET_ELEMENTS

BUCKET_ELEMENTS = 2 * TRANSFER_BUCKET_ELEMENTS
"""Elements in flight on a rank, sent and received together."""


@dataclass(frozen=True)
class TransferStats:
    """Bytes and time of one run on this rank."""

    bytes_sent: int
    """Bytes for other ranks."""
    bytes_sent_between: int
    """Part of `bytes_sent` that goes to other nodes."""
    bytes_received: int
    """Bytes from other ranks."""
    bytes_received_between: int
    """Part of `bytes_received` that comes from other nodes."""
    bytes_local: int
    """Bytes copied within the rank."""
    bytes_aliased: int
    """Bytes that need no copy, because source and target are the same memory."""
    peak_staging_bytes: int
    """Size of the staging buffer."""
    seconds: float
    """Wall time; with GPUs until their work is done."""


class PreparedTransfer:
    """A plan bound to a rank's views: prepared once, `run` many times.

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
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """Bind a plan; collective when the world has more than one rank.

        Args:
            plan: the same on all ranks.
            rank: this rank within the group.
            source_views: this rank's pieces of the plan's source layout.
            target_views: its pieces of the target layout; their dtypes are those of the messages.
            group: the ranks of the plan; None for all. Not used in a world of one.
            bucket_elements: bound of the elements in flight on a rank, the same on all ranks.

        Raises:
            TransferError: the views do not match the plan, or the ranks do not agree.
        """
        self._plan, self._rank = plan, rank
        self._devices = _cuda_devices(source_views, target_views)
        self._staging = StagingBuffer(torch.device("cpu"))
        self.dtypes = tensor_dtypes(target_views)
        """The target's dtype of every name, on whichever ranks it is."""
        if plan.world_size > 1:
            self.dtypes = agree_on_transfer(plan, rank, target_views, group, bucket_elements)
            self._staging = StagingBuffer(_staging_device(group))
        # After the collective: a rank that raised before would leave the others waiting in it.
        check_views(source_views, rank)
        check_views(target_views, rank)
        self._bind_copies(plan, rank, source_views, target_views)
        rounds = plan_rounds(plan, rank, max(1, bucket_elements // 2))  # two of them are staged
        self._exchanges = bind(rounds, rank, source_views, target_views, self.dtypes, self._staging)
        # Also without a message on this rank: connecting is collective.
        self._transport: Transport = GroupTransport(group, self._staging.device)
        self.release()  # a first run may be long after

    @torch.no_grad()
    def run(self) -> TransferStats:
        """Copy the source's present values into the target; collective."""
        start = perf_counter()
        self._staging.reserve()
        sent, received = _ByteCount(), _ByteCount()
        in_flight: tuple[Exchange, Delivery] | None = None
        for exchange in self._exchanges:
            if in_flight is not None and exchange.forwards > in_flight[0].forwards:
                # Forwarding reads target pieces: all direct messages must have arrived before.
                _finish(in_flight)
                in_flight = None
            # Packing overlaps the previous round's transfer, unpacking the next one's.
            exchange.outgoing.pack()
            if in_flight is not None:
                in_flight[1].wait()
            delivery = self._transport.begin(exchange.outgoing.messages, exchange.incoming.messages)
            if in_flight is not None:
                in_flight[0].incoming.unpack()
            in_flight = exchange, delivery
            self._count(sent, exchange.outgoing.messages)
            self._count(received, exchange.incoming.messages)
        # Local copies overlap the last round.
        copy_all(self._copy_targets, self._copy_sources)
        if in_flight is not None:
            _finish(in_flight)
        # On return sources may be freed, and the time must include the GPUs' work.
        for device in self._devices:
            torch.cuda.synchronize(device)
        return TransferStats(
            bytes_sent=sent.total,
            bytes_sent_between=sent.between_nodes,
            bytes_received=received.total,
            bytes_received_between=received.between_nodes,
            bytes_local=self._bytes_local,
            bytes_aliased=self._bytes_aliased,
            peak_staging_bytes=self._staging.num_bytes,
            seconds=perf_counter() - start,
        )

    def release(self) -> None:
        """Free the staging memory; the next run allocates it again."""
        self._staging.release()

    def _count(self, count: _ByteCount, messages: list[Message]) -> None:
        for peer, elements in messages:
            count.total += elements.nbytes
            if not self._plan.topology.same_node(self._rank, peer):
                count.between_nodes += elements.nbytes

    def _bind_copies(
        self, plan: ReshardPlan, rank: int, source_views: Views, target_views: Views
    ) -> None:
        self._copy_sources: list[Tensor] = []
        self._copy_targets: list[Tensor] = []
        self._bytes_local = self._bytes_aliased = 0
        for move in plan.local_moves(rank):
            source = slice_view(source_views, move.name, move.box, rank)
            target = slice_view(target_views, move.name, move.box, rank)
            # Both sides may view one storage: then there is nothing to copy.
            if is_same_memory(source, target):
                self._bytes_aliased += target.nbytes
                continue
            self._bytes_local += target.nbytes
            self._copy_sources.append(source)
            self._copy_targets.append(target)


def _finish(in_flight: tuple[Exchange, Delivery]) -> None:
    exchange, delivery = in_flight
    delivery.wait()
    exchange.incoming.unpack()


def execute(
    plan: ReshardPlan,
    rank: int,
    source_views: Views,
    target_views: Views,
    group: dist.ProcessGroup | None = None,
    bucket_elements: int = BUCKET_ELEMENTS,
) -> TransferStats:
    """Prepare a plan and run it once; arguments and errors as in PreparedTransfer."""
    return PreparedTransfer(plan, rank, source_views, target_views, group, bucket_elements).run()


@dataclass
class _ByteCount:
    total: int = 0
    between_nodes: int = 0


def _cuda_devices(*views: Views) -> list[torch.device]:
    devices = {view.tensor.device for names in views for vs in names.values() for view in vs}
    return sorted((d for d in devices if d.type == "cuda"), key=str)


def _staging_device(group: dist.ProcessGroup | None) -> torch.device:
    """The device of staging buffers: a GPU if NCCL serves the group's GPUs, else the CPU."""
    # From the group, not from views: ranks without a view must give the same answer.
    if "cuda:nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def agree_on_transfer(
    plan: ReshardPlan,
    rank: int,
    target_views: Views,
    group: dist.ProcessGroup | None,
    bucket_elements: int,
) -> dict[str, torch.dtype]:
    """Exchange the target's dtypes and check that all ranks have the same plan; collective.

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
    # A full plan may be large, so that ranks compare summaries.
    own = (_summarize(plan, bucket_elements), tensor_dtypes(target_views))
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


def _summarize(plan: ReshardPlan, bucket_elements: int) -> tuple[object, ...]:
    """A small value that differs for all but contrived pairs of plans."""
    last = plan.batches[-1:]
    return (len(plan.batches), last, plan.topology, plan.traffic, bucket_elements)
