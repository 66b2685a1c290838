"""How an engine gives its memory back while the trainer needs it, by kind of device.

Both ways keep every tensor object and view valid; contents are lost.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from rlhf_runtime.engines.offloading import give_free_pages_back
from rlhf_runtime.engines.vllm.layout import storages


class EngineMemory(Protocol):
    """Weights and key-value cache of one engine. The cache is of no use while weights are written,
    so it may take the memory that this needs."""

    def release(self) -> None:
        """Give the memory back."""

    def restore_weights(self) -> None:
        """Take that of the weights again, if it was given back: they are undefined."""

    def restore_cache(self) -> None:
        """Take that of the cache again, if it was given back: it is empty."""


class HostMemory:
    """On CPUs, where vLLM's sleep mode does nothing: storages shrink to zero and grow again."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._weights: Storages = []
        self._cache: Storages = []

    def release(self) -> None:
        """Shrink the storages and hand free pages to the operating system."""
        if self._weights:
            return
        caches = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self._caches()}
        self._weights = _shrunk(storages(self._runner.model))
        self._cache = _shrunk(caches.values())
        gc.collect()
        give_free_pages_back()

    def restore_weights(self) -> None:
        """Grow their storages."""
        _grow(self._weights)

    def restore_cache(self) -> None:
        """Grow its storages."""
        if self._cache:
            _grow(self._cache)
            for cache in self._caches():
                cache.zero_()

    def _caches(self) -> list[torch.Tensor]:
        return list(self._runner.kv_caches)


Storages = list[tuple[torch.UntypedStorage, int]]
"""With the bytes that each had."""


def _shrunk(found: Iterable[torch.UntypedStorage]) -> Storages:
    """Storages with the bytes that they had; they have none any more."""
    sizes = [(storage, storage.nbytes()) for storage in found]
    for storage, _ in sizes:
        storage.resize_(0)
    return sizes


def _grow(released: Storages) -> None:
    for storage, size in released:
        storage.resize_(size)
    released.clear()


class DeviceMemory:
    """On GPUs: vLLM's sleep mode, which keeps addresses, as captured CUDA graphs need."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._asleep: set[str] = set()
        """Which parts are, by vLLM's names."""

    def release(self) -> None:
        """Sleep at level 2: weights and cache are dropped, buffers kept on the host."""
        if not self._asleep:
            self._core.sleep(level=2)
            self._asleep = {"weights", "kv_cache"}

    def restore_weights(self) -> None:
        """Wake their part. vLLM gives the device what the trainer's allocator has free before."""
        if "weights" in self._asleep:
            self._wake("weights")

    def restore_cache(self) -> None:
        """Wake its part."""
        if "kv_cache" in self._asleep:
            self._wake("kv_cache")

    def _wake(self, part: str) -> None:
        self._core.wake_up([part])
        self._asleep.remove(part)
