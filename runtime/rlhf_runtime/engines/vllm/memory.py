"""How an engine gives its memory back while the trainer needs it, by kind of device.

Both ways keep every tensor object and view valid; contents are lost.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any, Protocol

import torch

from rlhf_runtime.engines.vllm.layout import storages


class EngineMemory(Protocol):
    """Weights and key-value cache of one engine."""

    def release(self) -> None:
        """Give the memory back."""

    def restore(self) -> None:
        """Take it again, if it was given back: weights are undefined, the cache is empty."""


class HostMemory:
    """On CPUs, where vLLM's sleep mode does nothing: storages shrink to zero and grow again."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._released: list[tuple[torch.UntypedStorage, int]] = []

    def release(self) -> None:
        """Shrink the storages and hand free pages to the operating system."""
        if self._released:
            return
        caches = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self._caches()}
        for storage in [*storages(self._runner.model), *caches.values()]:
            self._released.append((storage, storage.nbytes()))
            storage.resize_(0)
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)

    def restore(self) -> None:
        """Grow the storages."""
        if not self._released:
            return
        for storage, size in self._released:
            storage.resize_(size)
        self._released.clear()
        for cache in self._caches():
            cache.zero_()

    def _caches(self) -> list[torch.Tensor]:
        return list(self._runner.kv_caches)


class DeviceMemory:
    """On GPUs: vLLM's sleep mode, which keeps addresses, as captured CUDA graphs need."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._released = False

    def release(self) -> None:
        """Sleep at level 2: weights and cache are dropped, buffers kept on the host."""
        if not self._released:
            self._core.sleep(level=2)
            self._released = True

    def restore(self) -> None:
        """Wake up."""
        if self._released:
            self._core.wake_up()
            self._released = False
