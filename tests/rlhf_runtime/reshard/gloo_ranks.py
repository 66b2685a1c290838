"""One rank of a real gloo world: runs every scenario and writes what failed, for test_execute.

Run as `python -m tests.rlhf_runtime.reshard.gloo_ranks RANK WORLD_SIZE FOLDER`. The oracle of every
scenario is the full tensor, which every rank can make for itself.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_runtime.reshard.checksum import slice_checksum
from rlhf_runtime.reshard.errors import InvalidReshard, TransferError
from rlhf_runtime.reshard.execute import PreparedTransfer, execute
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.messages import ALIGNMENT, ALONE_BYTES
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.topology import Topology
from rlhf_runtime.reshard.views import View, Views

from . import model_layouts as ml
from .gloo_memory import SCENARIOS as OF_MEMORY
from .gloo_views import (
    HIDDEN,
    assert_equal,
    bfloat16,
    empty,
    filled,
    float32,
    full_weights,
    mixed,
    part,
    shapes_of,
    tensor_parallel,
)


def fused_engine(rank: int) -> tuple[Views, dict[str, Tensor]]:
    """vLLM's storage under tensor parallelism of 2: fused projections, vocabulary padded to 320."""
    index, half = rank % 2, HIDDEN // 2
    views: dict[str, list[View]] = {}
    storage: dict[str, Tensor] = {}

    def place(name: str, tensor: Tensor) -> None:
        box = ml.tensor_parallel_box(name, shapes_of()[name], index, 2)
        views.setdefault(name, []).append(View(tensor, box))

    for layer in range(2):
        prefix = f"model.layers.{layer}."
        qkv = storage[prefix + "qkv"] = torch.zeros(3 * half, HIDDEN)
        for letter, rows in zip("qkv", qkv.split(half), strict=True):
            place(f"{prefix}self_attn.{letter}_proj.weight", rows)
        gate_up = storage[prefix + "gate_up"] = torch.zeros(128, HIDDEN)
        for letter, rows in zip(("gate", "up"), gate_up.chunk(2), strict=True):
            place(f"{prefix}mlp.{letter}_proj.weight", rows)
        turned = storage[prefix + "o_down"] = torch.zeros(half + 64, HIDDEN).T
        place(f"{prefix}self_attn.o_proj.weight", turned[:, :half])
        place(f"{prefix}mlp.down_proj.weight", turned[:, half:])
        place(f"{prefix}input_layernorm.weight", torch.zeros(HIDDEN))
    place("model.norm.weight", torch.zeros(HIDDEN))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        padded = storage[name] = torch.zeros(160, HIDDEN)
        place(name, padded[: 160 - 20 * index])
    return views, storage


def sharded_rows_fill_a_fused_engine(rank: int, world_size: int) -> None:
    shapes = shapes_of()
    full = full_weights(shapes)
    source, target = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    plan = plan_reshard(source, target)
    views, storage = fused_engine(rank)
    stats = execute(plan, rank, filled(source, rank, full), views)
    assert_equal(views, full)
    assert stats.bytes_sent == 4 * plan.traffic.sent[rank]
    assert stats.bytes_received == 4 * plan.traffic.received[rank]
    assert stats.bytes_local == 4 * plan.traffic.kept[rank]
    if rank % 2:
        assert (storage["lm_head.weight"][140:] == 0).all(), "padding rows stay as they were"


def values_are_cast_to_the_targets_dtype(
    rank: int, world_size: int, dtype: Callable[[str], torch.dtype]
) -> None:
    shapes = shapes_of()
    full = full_weights(shapes)
    source, target = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    plan = plan_reshard(source, target)
    views = empty(target, rank, dtype)
    stats = execute(plan, rank, filled(source, rank, full), views)
    assert_equal(views, full)
    expected = sum(
        m.box.volume * dtype(m.name).itemsize for m in plan.direct if m.target_rank == rank
    )
    assert stats.bytes_received == expected


def odd_sizes_of_two_dtypes_share_the_staging_memory(rank: int, world_size: int) -> None:
    shapes: ml.Shapes = {"w": (5, 3), "norm": (7,), "other_norm": (7,)}
    full = full_weights(shapes)
    source = ml.fully_sharded(shapes, world_size)
    target = Layout(
        shapes, (tuple(Piece(n, TensorSlice.full(s)) for n, s in shapes.items()),) * world_size
    )
    views = empty(target, rank, mixed)
    execute(plan_reshard(source, target), rank, filled(source, rank, full), views)
    assert_equal(views, full)


def small_buckets_bound_the_staging_memory(rank: int, world_size: int) -> None:
    shapes = shapes_of()
    source, target = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    plan = plan_reshard(source, target)
    full = full_weights(shapes)
    views = empty(target, rank, mixed)
    stats = execute(plan, rank, filled(source, rank, full), views, bucket_elements=1000)
    assert_equal(views, full)
    assert 0 < stats.peak_staging_bytes <= 1000 * 4 + 2 * ALIGNMENT


def a_prepared_transfer_runs_again_with_new_values(rank: int, world_size: int) -> None:
    shapes = shapes_of()
    source, target = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    sources, targets = filled(source, rank, full_weights(shapes)), empty(target, rank, float32)
    for view in (view for views in sources.values() for view in views):
        view.tensor.requires_grad_()
    transfer = PreparedTransfer(plan_reshard(source, target), rank, sources, targets)
    storages = [view.tensor.untyped_storage() for views in targets.values() for view in views]
    sizes = [storage.nbytes() for storage in storages]
    for seed in range(3):
        full = full_weights(shapes, seed)
        for name, views in sources.items():
            for tensor, box in views:
                tensor.data.copy_(part(full[name], box))
        transfer.run()
        assert_equal(targets, full)
        transfer.release()
        for storage, size in zip(storages, sizes, strict=True):  # the target sleeps and wakes
            storage.resize_(0)
            storage.resize_(size)


def what_nodes_share_crosses_once_and_is_forwarded(rank: int, world_size: int) -> None:
    shapes = shapes_of()
    full = full_weights(shapes)
    everything = tuple(Piece(name, TensorSlice.full(shape)) for name, shape in shapes.items())
    source = ml.fully_sharded(shapes, world_size)
    target = Layout(shapes, (everything,) * world_size)
    topology = Topology.regular(world_size, world_size // 2)
    plan = plan_reshard(source, target, topology)
    for bucket_elements in (1 << 20, 777):
        views = empty(target, rank, bfloat16)
        stats = execute(
            plan, rank, filled(source, rank, full), views, bucket_elements=bucket_elements
        )
        assert_equal(views, full)
        traffic = plan.traffic
        assert stats.bytes_sent == 2 * traffic.sent[rank]
        assert stats.bytes_sent_between == 2 * traffic.sent_between[rank]
        assert stats.bytes_received == 2 * traffic.received[rank]
        assert stats.bytes_received_between == 2 * traffic.received_between[rank]
    size = sum(prod(shape) for shape in shapes.values())
    assert sum(plan.traffic.sent_between) == size, "every node lacks what the other holds"
    assert bool(plan.forwarded) == (world_size > 2)


def large_parts_travel_from_storage_to_storage(rank: int, world_size: int) -> None:
    rows, columns = 2048, 64
    shapes: ml.Shapes = {"w": (rows, columns)}
    full = full_weights(shapes)
    source = ml.fully_sharded(shapes, world_size)
    own_bytes = 4 * rows * columns // world_size
    assert own_bytes // 2 >= ALONE_BYTES
    whole = [TensorSlice.full((rows, columns))] * world_size
    halves = [
        TensorSlice((0, columns // 2 * (r % 2)), (rows, columns // 2)) for r in range(world_size)
    ]

    def staged(boxes: list[TensorSlice], dtype: Callable[[str], torch.dtype]) -> int:
        target = Layout(shapes, tuple((Piece("w", box),) for box in boxes))
        views = empty(target, rank, dtype)
        stats = execute(plan_reshard(source, target), rank, filled(source, rank, full), views)
        assert_equal(views, full)
        return stats.peak_staging_bytes

    assert staged(whole, float32) == 0
    assert staged(whole, bfloat16) == own_bytes // 2, "what is cast is packed once for all"
    packed = min(2, world_size - 1)  # its own half only where another rank wants it, too
    assert staged(halves, float32) == packed * own_bytes // 2, "rows arrive in place"


def every_rank_learns_all_layouts(rank: int, world_size: int) -> None:
    shapes = shapes_of()
    source = ml.model_parallel(shapes, ml.training_places(world_size, 1, 1), 1, world_size, 2)
    target = tensor_parallel(shapes, world_size)
    views = filled(source, rank, full_weights(shapes)), empty(target, rank, float32)
    gathered = gather_layouts(*views, dist.group.WORLD)
    assert sorted(gathered.source.shapes.items()) == sorted(shapes.items())
    assert gathered.source.pieces == source.pieces
    assert gathered.target.pieces == target.pieces
    assert gathered.target.pieces[0] is gathered.target.pieces[world_size - 2]
    assert gathered.topology == Topology.regular(world_size)
    lacking = {} if rank == 0 else views[0]
    try:
        plan_reshard(*gather_layouts(lacking, views[1], dist.group.WORLD))
    except InvalidReshard as error:
        assert "tensor without a source" in str(error)
    else:
        raise AssertionError("no error")


def ranks_without_rows_take_part(rank: int, world_size: int) -> None:
    shapes: ml.Shapes = {"w": (5, 3), "b": (1,)}
    full = full_weights(shapes)
    source = ml.fully_sharded(shapes, world_size)
    everything = tuple(Piece(name, TensorSlice.full(shape)) for name, shape in shapes.items())
    for target in (
        Layout(shapes, (everything,) * world_size),
        Layout(shapes, (*[()] * (world_size - 1), everything)),  # offload to the last rank
    ):
        views = empty(target, rank, bfloat16)
        execute(plan_reshard(source, target), rank, filled(source, rank, full), views)
        assert_equal(views, full)


def nested_shards_stay_in_place(rank: int, world_size: int) -> None:
    shapes = ml.matrices(2, HIDDEN)
    size = sum(prod(shape) for shape in shapes.values())
    t, t_g = world_size, world_size // 2
    source = ml.model_parallel(shapes, ml.training_places(1, t, 1), t, 1, 2)
    target = ml.model_parallel(shapes, ml.strided_places(1, t, 1, 1, t_g), t_g, 1, 2)
    plan = plan_reshard(source, target)
    full = full_weights(shapes)
    targets = empty(target, rank, float32)
    sources: dict[str, list[View]] = {}
    for name, box in source.pieces[rank]:
        ((tensor, outer),) = targets[name]
        sources[name] = [View(tensor[box.slices_in(outer)], box)]
        sources[name][0].tensor.copy_(part(full[name], box))
    stats = execute(plan, rank, sources, targets)
    assert_equal(targets, full)
    assert stats.bytes_local == 0
    assert stats.bytes_aliased == 4 * size // t
    assert stats.bytes_received * t * t_g == 4 * (t - t_g) * size


def pairs_of_ranks_reshard_by_themselves(rank: int, world_size: int) -> None:
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    shapes = shapes_of()
    full = full_weights(shapes, seed=rank // 2)
    source, target = ml.fully_sharded(shapes, 2), tensor_parallel(shapes, 2)
    views = empty(target, rank % 2, float32)
    sources = filled(source, rank % 2, full)
    execute(plan_reshard(source, target), rank % 2, sources, views, pairs[rank // 2])
    assert_equal(views, full)


def checksums_of_source_and_target_agree(rank: int, world_size: int) -> None:
    shapes = shapes_of()
    source, target = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    sources = filled(source, rank, full_weights(shapes))
    targets = empty(target, rank, mixed)
    execute(plan_reshard(source, target), rank, sources, targets)
    names = [name for name in shapes if "norm" not in name]
    held = torch.stack(
        [sum_of(slice_checksum(t, b, mixed(name)) for t, b in sources[name]) for name in names]
    )
    got = torch.stack([sum_of(slice_checksum(t, b) for t, b in targets[name]) for name in names])
    dist.all_reduce(held)
    pair = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)][rank // 2]
    dist.all_reduce(got, group=pair)
    assert torch.equal(held, got)


def sum_of(checksums: object) -> Tensor:
    return sum(checksums, torch.zeros((), dtype=torch.int64))  # type: ignore[call-overload,no-any-return]


def disagreement_is_an_error_on_every_rank(rank: int, world_size: int) -> None:
    shapes: ml.Shapes = {"w": (4, 4)}
    source = ml.fully_sharded(shapes, world_size)
    target = Layout(shapes, ((Piece("w", TensorSlice.full((4, 4))),),) * world_size)
    plan = plan_reshard(source, target)
    full = full_weights(shapes)
    sources, views = filled(source, rank, full), empty(target, rank, float32)
    other_dtype = empty(target, rank, bfloat16 if rank == 1 else float32)
    attempts = {
        "different transfers": partial(
            execute, plan, rank, sources, views, bucket_elements=4 + rank
        ),
        "dtypes of 'w' differ": partial(execute, plan, rank, sources, other_dtype),
        "not the plan's world": partial(execute, plan, rank + 1, sources, views),
    }
    for text, attempt in attempts.items():
        try:
            attempt()
        except TransferError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error: {text}")


def repeated_runs_of_a_tiny_model_take_milliseconds(rank: int, world_size: int) -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(2, 128, 512), 128, 64)
    source, target = ml.fully_sharded(shapes, world_size), tensor_parallel(shapes, world_size)
    full = full_weights(shapes)
    views = empty(target, rank, float32)
    transfer = PreparedTransfer(
        plan_reshard(source, target), rank, filled(source, rank, full), views
    )
    seconds = median(transfer.run().seconds for _ in range(20))
    assert_equal(views, full)
    assert seconds < 0.25, f"{seconds:.4f} s, about 2 ms on idle cores"
    print(f"rank {rank} of {world_size}: {1e3 * seconds:.2f} ms")


SCENARIOS: dict[str, Callable[[int, int], None]] = {
    "sharded rows fill a fused engine": sharded_rows_fill_a_fused_engine,
    "values are cast to bfloat16": partial(values_are_cast_to_the_targets_dtype, dtype=bfloat16),
    "each tensor has its own dtype": partial(values_are_cast_to_the_targets_dtype, dtype=mixed),
    "odd sizes of two dtypes": odd_sizes_of_two_dtypes_share_the_staging_memory,
    "small buckets bound the staging memory": small_buckets_bound_the_staging_memory,
    "a prepared transfer runs again": a_prepared_transfer_runs_again_with_new_values,
    "nodes share what crosses": what_nodes_share_crosses_once_and_is_forwarded,
    "large parts travel from storage to storage": large_parts_travel_from_storage_to_storage,
    "every rank learns all layouts": every_rank_learns_all_layouts,
    "ranks without rows take part": ranks_without_rows_take_part,
    "nested shards stay in place": nested_shards_stay_in_place,
    "pairs of ranks reshard by themselves": pairs_of_ranks_reshard_by_themselves,
    "checksums of source and target agree": checksums_of_source_and_target_agree,
    "disagreement is an error on every rank": disagreement_is_an_error_on_every_rank,
    "a tiny model takes milliseconds": repeated_runs_of_a_tiny_model_take_milliseconds,
    **OF_MEMORY,
}


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    failures: dict[str, str | None] = {}
    for name, scenario in SCENARIOS.items():
        try:
            scenario(rank, world_size)
        except Exception:  # reported to the test, which fails with it
            failures[name] = traceback.format_exc()
        else:
            failures[name] = None
        dist.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(failures))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
