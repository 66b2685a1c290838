"""Memory of copies: given back after each one, or kept for the next."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from rlhf_runtime.checkpoint.saver import StagerPool
from rlhf_runtime.reshard.local_shards import LocalShards
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View

PLAIN = StagingOptions(
    use_pinned_memory=False,
    use_shared_memory=False,
    use_async_staging=False,
    use_non_blocking_copy=False,
)


def state_of(weights: torch.Tensor) -> dict[str, Any]:
    """New views of the same storage, as an engine gives at every checkpoint."""
    shards = LocalShards((4, 5), [View(weights[:, :3], TensorSlice((0, 1), (4, 3)))])
    return {"w": shards, "step": weights[0, 0]}


def copied(stager: DefaultStager, weights: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What was copied of the shards, and where it lies."""
    staged: dict[str, Any] = stager.stage(state_of(weights))
    (view,) = staged["w"].views
    assert float(staged["step"]) == float(weights[0, 0])
    return view.tensor, view.tensor.untyped_storage().data_ptr()


def test_memory_is_kept_for_the_next_copy_of_the_same_storage() -> None:
    staging, weights = StagerPool(PLAIN, keeps_memory=True), torch.arange(12.0).view(4, 3)
    stager = staging.acquire()
    first, location = copied(stager, weights)
    assert torch.equal(first, weights) and location != weights.untyped_storage().data_ptr()
    staging.release(stager)
    del first
    weights.add_(1)
    again = staging.acquire()
    assert again is stager and staging.acquire() is not stager, "one copy at a time"
    second, same_place = copied(again, weights)
    assert torch.equal(second, weights) and same_place == location


def test_other_memory_is_given_back_when_a_copy_is_written() -> None:
    """At once, not when cycles are looked for."""
    staging, weights = StagerPool.for_device("cpu"), torch.zeros(4, 3)
    gc.disable()
    try:
        stager = staging.acquire()
        first, _ = copied(stager, weights)
        memory = weakref.ref(first.untyped_storage())
        del first
        assert memory() is not None
        staging.release(stager)
        assert memory() is None
    finally:
        gc.enable()
    assert staging.acquire() is not stager
