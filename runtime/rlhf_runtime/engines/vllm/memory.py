"""How an engine gives its memory back while the trainer needs it, by kind of device.

Both ways keep every tensor object and view valid; contents are lost.
"""

from __future__ import annotations

import gc
from typing import Any, Protocol

import torch

from rlhf_runtime.engines.host_memory import give_free_pages_back
from rlhf_runtime.engines.offloading import Shrunk, grow, shrink, storages_of


class EngineMemory(Protocol):
    """Weights and key-value cache of one engine. The cache is of no use while weights are written,
    so it may take the memory that this needs. Weights may come back alone, and be released again
    before the cache has."""

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
        self._weights: Shrunk = []
        self._cache: Shrunk = []

    def release(self) -> None:
        """Shrink the storages and hand free pages to the operating system."""
        if self._weights:
            return
        self._weights += shrink(storages_of(self._runner.model.parameters()))
        self._cache += shrink(storages_of(self._caches()))  # weights may have come back alone
        gc.collect()
        give_free_pages_back()

    def restore_weights(self) -> None:
        """Grow their storages."""
        grow(self._weights)

    def restore_cache(self) -> None:
        """Grow its storages."""
        if self._cache:
            grow(self._cache)
            for cache in self._caches():
                cache.zero_()

    def _caches(self) -> list[torch.Tensor]:
        return list(self._runner.kv_caches)


class DeviceMemory:
    """On GPUs: vLLM's sleep mode, which keeps addresses, as captured CUDA graphs need."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._asleep: set[str] = set()
        """Which parts are, by vLLM's names."""

    def release(self) -> None:
        """Sleep at level 2: weights and cache are dropped, buffers kept on the host. vLLM leaves
        alone what sleeps."""
        if "weights" not in self._asleep:
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
