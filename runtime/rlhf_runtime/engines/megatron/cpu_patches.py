"""Shim that runs Megatron-core in a process without a GPU: the only file that patches Megatron.

Megatron allocates on `torch.cuda.current_device()`. Here some of its modules get a replacement of
`torch` whose current device is the CPU. torch itself does not change, nor do vLLM and
transformers in the same process.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch

CPU = torch.device("cpu")

MODULES = (
    "megatron.core.tensor_parallel.layers",  # gradients of inputs under sequence parallelism
    "megatron.core.tensor_parallel.mappings",  # gathered and scattered tensors
    "megatron.core.utils",  # the buffer for gathered inputs
    "megatron.core.distributed.param_and_grad_buffer",  # the buffer of gradients
)
"""Modules that allocate on a GPU."""


class _CpuRuntime:
    """The functions of `torch.cuda` that these modules use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @staticmethod
    def current_device() -> torch.device:
        """The CPU."""
        return CPU


class _CpuTorch(ModuleType):
    """torch, but with tensors for a GPU allocated on the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _CpuRuntime()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def run_on_cpu() -> None:
    """Patch Megatron to run in this process without a GPU. Idempotent."""
    cpu_torch = _CpuTorch()
    for name in MODULES:
        module = import_module(name)
        if not isinstance(module.torch, _CpuTorch):
            setattr(module, "torch", cpu_torch)  # noqa: B010  # modules have no such attribute
    layers = import_module("megatron.core.tensor_parallel.layers")
    # Otherwise every process would warn about a setting of CUDA.
    layers.linear_with_grad_accumulation_and_async_allreduce.warned = True
