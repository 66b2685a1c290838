"""What a transfer takes and sends on a rank of a gloo world, seen from outside of the executor.

Storages are counted as torch hands them out, bytes as they pass the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_runtime.reshard.accounting import reshard_costs
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.messages import ALIGNMENT
from rlhf_runtime.reshard.plan import ReshardPlan, plan_reshard
from rlhf_runtime.reshard.topology import Topology
from rlhf_runtime.reshard.transport import Delivery, Message
from rlhf_runtime.reshard.views import View, Views

from . import model_layouts as ml
from .gloo_views import (
    HIDDEN,
    assert_equal,
    bfloat16,
    empty,
    filled,
    float32,
    full_weights,
    part,
    shapes_of,
    tensor_parallel,
)

BUCKET_ELEMENTS = 3000


class LivingStorages(TorchDispatchMode):
    """Sums the unique storages of all tensors that operations have seen and that still live."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0
        self._see(tensors)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self._see(each for each in tree_leaves((args, made)) if isinstance(each, Tensor))
        return made

    def _see(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                self._living[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._living = {
            place: each for place, each in self._living.items() if not each[0].expired()
        }
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._living.values()))


class CountingTransport:
    """Passes messages on and counts their bytes."""

    def __init__(self, transfer: PreparedTransfer) -> None:
        self._transport = transfer._transport
        transfer._transport = self
        self.bytes_sent = self.bytes_received = self.most_at_once = 0

    def begin(self, outgoing: Sequence[Message], incoming: Sequence[Message]) -> Delivery:
        sent, received = (sum(m.elements.nbytes for m in each) for each in (outgoing, incoming))
        self.bytes_sent += sent
        self.bytes_received += received
        self.most_at_once = max(self.most_at_once, sent + received)
        return self._transport.begin(outgoing, incoming)


def tensors_of(*views: Views) -> list[Tensor]:
    return [view.tensor for of in views for parts in of.values() for view in parts]


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    storages = (each.untyped_storage() for each in tensors)
    return sum({each.data_ptr(): each.nbytes() for each in storages if each.nbytes()}.values())


def assert_bounded(plan: ReshardPlan, rank: int, source: Views, target: Views) -> int:
    """Run it; the most bytes that lived meanwhile, which is what it was given and one bucket."""
    itemsize = tensors_of(target)[0].itemsize
    transfer = PreparedTransfer(plan, rank, source, target, bucket_elements=BUCKET_ELEMENTS)
    counted = CountingTransport(transfer)
    given = unique_bytes(tensors_of(source, target))
    with LivingStorages(tensors_of(source, target)) as storages:
        stats = transfer.run()
    assert 0 < stats.peak_staging_bytes <= BUCKET_ELEMENTS * itemsize + 2 * ALIGNMENT
    assert storages.peak_bytes == given + stats.peak_staging_bytes
    assert counted.bytes_sent == stats.bytes_sent == itemsize * plan.traffic.sent[rank]
    assert counted.bytes_received == stats.bytes_received == itemsize * plan.traffic.received[rank]
    assert 0 < counted.most_at_once <= BUCKET_ELEMENTS // 2 * itemsize
    return storages.peak_bytes - stats.peak_staging_bytes


def covered_shards_take_the_target_and_a_bucket(rank: int, world_size: int) -> None:
    """HybridFlow's groups: what is trained lies in what is generated with."""
    t, t_g = world_size, world_size // 2
    shapes = ml.matrices(2, HIDDEN)
    source = ml.model_parallel(shapes, ml.training_places(1, t, 1), t, 1, 2)
    target = ml.model_parallel(shapes, ml.strided_places(1, t, 1, 1, t_g), t_g, 1, 2)
    plan = plan_reshard(source, target)
    full = full_weights(shapes)
    targets = empty(target, rank, float32)
    sources = {}
    for name, box in source.pieces[rank]:
        ((tensor, outer),) = targets[name]
        sources[name] = [View(tensor[box.slices_in(outer)], box)]
        sources[name][0].tensor.copy_(part(full[name], box))
    peak = assert_bounded(plan, rank, sources, targets)
    assert (
        peak == 4 * reshard_costs(source, target, plan)[rank].peak == 4 * target.num_elements(rank)
    )
    assert_equal(targets, full)


def others_take_source_target_and_a_bucket(rank: int, world_size: int) -> None:
    """From rows, into copies on every node, and from one tensor rank to many; cast or not."""
    shapes = shapes_of()
    full = full_weights(shapes)
    rows, halves = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    copies, columns = (tensor_parallel(shapes, world_size, size) for size in (1, world_size))
    nodes = Topology.regular(world_size, world_size // 2)
    cases: list[tuple[Layout, Layout]] = [(rows, halves), (rows, copies), (columns, halves)]
    for source, target in cases:
        for dtype in (float32, bfloat16):
            sources, targets = filled(source, rank, full), empty(target, rank, dtype)
            plan = plan_reshard(source, target, nodes)
            if not any(plan.traffic.sent):
                continue
            peak = assert_bounded(plan, rank, sources, targets)
            held = source.num_elements(rank), target.num_elements(rank)
            assert peak == 4 * held[0] + dtype("").itemsize * held[1]
            assert_equal(targets, full)


SCENARIOS: dict[str, Callable[[int, int], None]] = {
    "covered shards take the target and a bucket": covered_shards_take_the_target_and_a_bucket,
    "others take source, target and a bucket": others_take_source_target_and_a_bucket,
}
