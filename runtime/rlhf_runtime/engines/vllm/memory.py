"""Engine memory: frees an engine's memory while the trainer needs it, by kind of device.

On all devices every tensor object and view stays valid; contents are lost.
"""

from __future__ import annotations

import gc
from typing import Any, Protocol

import torch

from rlhf_runtime.engines.host_memory import give_free_pages_back
from rlhf_runtime.engines.offloading import Shrunk, distinct_storages, grow, shrink


class EngineMemory(Protocol):
    """Weights and key-value cache of one engine.

    Weights may be restored alone, and released again before the cache has been restored.
    """

    # Restored apart, so that transfers may use the cache's memory while they write weights.

    def release(self) -> None:
        """Free the memory of both."""

    def restore_weights(self) -> None:
        """Allocate the memory of the weights if it was released; contents are undefined."""

    def restore_cache(self) -> None:
        """Allocate the memory of the cache if it was released; it is empty."""


class HostMemory:
    """Memory on CPUs, where vLLM's sleep mode does nothing: storages shrink and grow again."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._weights: Shrunk = []
        self._cache: Shrunk = []

    def release(self) -> None:
        """Shrink the storages and return free pages to the operating system."""
        if self._weights:
            return
        self._weights += shrink(distinct_storages(self._runner.model.parameters()))
        # The cache is still shrunk if only the weights had been restored.
        self._cache += shrink(distinct_storages(self._caches()))
        gc.collect()
        give_free_pages_back()

    def restore_weights(self) -> None:
        """Grow the weights' storages."""
        grow(self._weights)

    def restore_cache(self) -> None:
        """Grow the cache's storages."""
        if self._cache:
            grow(self._cache)
            for cache in self._caches():
                cache.zero_()

    def _caches(self) -> list[torch.Tensor]:
        return list(self._runner.kv_caches)


class DeviceMemory:
    """Memory on GPUs: vLLM's sleep mode, which keeps addresses for captured CUDA graphs."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._asleep: set[str] = set()
        """Sleeping parts, by vLLM's names."""

    def release(self) -> None:
        """Sleep at level 2: drop weights and cache, keep buffers on the host."""
        # vLLM skips parts that sleep already.
        if "weights" not in self._asleep:
            self._core.sleep(level=2)
            self._asleep = {"weights", "kv_cache"}

    def restore_weights(self) -> None:
        """Wake the weights."""
        # vLLM first returns the free memory of torch's allocator, the trainer's, to the device.
        if "weights" in self._asleep:
            self._wake("weights")

    def restore_cache(self) -> None:
        """Wake the cache."""
        if "kv_cache" in self._asleep:
            self._wake("kv_cache")

    def _wake(self, part: str) -> None:
        self._core.wake_up([part])
        self._asleep.remove(part)
