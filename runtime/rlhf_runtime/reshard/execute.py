"""Carries out a reshard plan over torch.distributed, straight into the target's views.

What stays on a rank is copied. The rest goes from rank to rank in rounds, in the target's dtype:
from storage to storage where both are contiguous, else through a staging buffer of bounded size.
While a round is under way the next one is packed and the last one unpacked. No full tensor and no
second model is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_planner.memory.generation import TRANSFER_BUCKET_ELEMENTS
from rlhf_runtime.reshard.agreement import agree
from rlhf_runtime.reshard.messages import Exchange, Staging, bind, copy_all
from rlhf_runtime.reshard.plan import ReshardPlan
from rlhf_runtime.reshard.rounds import rounds_of
from rlhf_runtime.reshard.transport import Delivery, GroupTransport, Message, Transport
from rlhf_runtime.reshard.views import Views, check_views, dtypes_of, is_same_memory, part_of

BUCKET_ELEMENTS = 2 * TRANSFER_BUCKET_ELEMENTS
"""Weights that a rank sends and receives at once, both together."""


@dataclass(frozen=True)
class TransferStats:
    """What one run moved on this rank."""

    bytes_sent: int
    """Handed to the transport for other ranks."""
    bytes_sent_between: int
    """Of these, for other nodes."""
    bytes_received: int
    """Taken from the transport."""
    bytes_received_between: int
    """Of these, from other nodes."""
    bytes_local: int
    """Copied within the rank."""
    bytes_in_place: int
    """Not touched, because source and target are the same memory."""
    peak_staging_bytes: int
    """The staging buffer."""
    seconds: float
    """Wall time; with GPUs until their work is done."""


class PreparedTransfer:
    """A plan bound to a rank's views: indices and messages are made once, `run` many times.

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
            target_views: its pieces of the target layout; their dtypes are what is sent.
            group: the ranks of the plan; None for all. Not used in a world of one.
            bucket_elements: bound of what is under way on a rank, the same on all ranks.

        Raises:
            TransferError: the views do not fit the plan, or the ranks do not agree.
        """
        self._plan, self._rank = plan, rank
        self._devices = _cuda_devices(source_views, target_views)
        self._staging = Staging(torch.device("cpu"))
        self.dtypes = dtypes_of(target_views)
        """The target's dtype of every name, whichever ranks hold it."""
        if plan.world_size > 1:
            self.dtypes = agree(plan, rank, target_views, group, bucket_elements)
            self._staging = Staging(_staging_device(group))
        check_views(source_views, rank)
        check_views(target_views, rank)
        self._bind_copies(plan, rank, source_views, target_views)
        rounds = rounds_of(plan, rank, max(1, bucket_elements // 2))  # of which two are staged
        self._exchanges = bind(rounds, rank, source_views, target_views, self.dtypes, self._staging)
        self._transport: Transport = GroupTransport(group, self._staging.device)
        self.release()  # a first run may be long after

    @torch.no_grad()
    def run(self) -> TransferStats:
        """Bring the source's present values into the target; collective."""
        start = perf_counter()
        self._staging.reserve()
        sent, received = _Counted(), _Counted()
        under_way: tuple[Exchange, Delivery] | None = None
        for exchange in self._exchanges:
            if under_way is not None and exchange.forwards > under_way[0].forwards:
                _finish(under_way)  # what was brought until now is what is forwarded from now on
                under_way = None
            exchange.outgoing.pack()
            if under_way is not None:
                under_way[1].wait()
            begun = self._transport.begin(exchange.outgoing.messages, exchange.incoming.messages)
            if under_way is not None:
                under_way[0].incoming.unpack()
            under_way = exchange, begun
            self._count(sent, exchange.outgoing.messages)
            self._count(received, exchange.incoming.messages)
        copy_all(self._copy_targets, self._copy_sources)
        if under_way is not None:
            _finish(under_way)
        for device in self._devices:
            torch.cuda.synchronize(device)
        return TransferStats(
            bytes_sent=sent.num_bytes,
            bytes_sent_between=sent.between_nodes,
            bytes_received=received.num_bytes,
            bytes_received_between=received.between_nodes,
            bytes_local=self._bytes_local,
            bytes_in_place=self._bytes_in_place,
            peak_staging_bytes=self._staging.num_bytes,
            seconds=perf_counter() - start,
        )

    def release(self) -> None:
        """Give the staging memory back; the next run takes it again."""
        self._staging.release()

    def _count(self, counted: _Counted, messages: list[Message]) -> None:
        for peer, elements in messages:
            counted.num_bytes += elements.nbytes
            if not self._plan.topology.same_node(self._rank, peer):
                counted.between_nodes += elements.nbytes

    def _bind_copies(
        self, plan: ReshardPlan, rank: int, source_views: Views, target_views: Views
    ) -> None:
        self._copy_sources: list[Tensor] = []
        self._copy_targets: list[Tensor] = []
        self._bytes_local = self._bytes_in_place = 0
        for move in plan.local_moves(rank):
            source = part_of(source_views, move.name, move.box, rank)
            target = part_of(target_views, move.name, move.box, rank)
            if is_same_memory(source, target):
                self._bytes_in_place += target.nbytes
                continue
            self._bytes_local += target.nbytes
            self._copy_sources.append(source)
            self._copy_targets.append(target)


def _finish(under_way: tuple[Exchange, Delivery]) -> None:
    exchange, delivery = under_way
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
class _Counted:
    num_bytes: int = 0
    between_nodes: int = 0


def _cuda_devices(*views: Views) -> list[torch.device]:
    devices = {view.tensor.device for of_rank in views for vs in of_rank.values() for view in vs}
    return sorted((d for d in devices if d.type == "cuda"), key=str)


def _staging_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's transport wants its buffers: on GPUs if NCCL serves theirs. All ranks say
    the same, also one without a view."""
    if "cuda:nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
