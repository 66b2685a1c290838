"""Megatron-core in a process without a GPU: the only place where its code is changed.

Megatron allocates on `torch.cuda.current_device()` and on "cuda". Here some of its modules get
another `torch` to look names up in: the real one, but for what says where tensors are. Nobody else
sees it: torch itself, and with it vLLM and transformers in the same process, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

CPU = torch.device("cpu")

MODULES = (
    "megatron.core.tensor_parallel.layers",  # gradients of inputs under sequence parallelism
    "megatron.core.tensor_parallel.mappings",  # what is gathered and scattered there
    "megatron.core.utils",  # the buffer in which inputs are gathered
    "megatron.core.pipeline_parallel.schedules",  # a count of tokens
    "megatron.core.pipeline_parallel.p2p_communication",  # what arrives from other stages
    "megatron.core.distributed.param_and_grad_buffer",  # the buffer of gradients
)
"""Which modules allocate on a GPU, and what."""

CONSTRUCTORS = ("empty", "tensor", "zeros")
"""torch's functions that these modules call with a device."""


class _CpuRuntime:
    """What these modules use of `torch.cuda`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @staticmethod
    def current_device() -> torch.device:
        """Where tensors are allocated."""
        return CPU

    @staticmethod
    def synchronize() -> None:
        """Nothing runs beside this process."""


class _CpuTorch(ModuleType):
    """torch, with tensors on the CPU that were asked for on a GPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _CpuRuntime()
        for name in CONSTRUCTORS:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(construct: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def constructed(*args: Any, **options: Any) -> torch.Tensor:
        if options.get("device") == "cuda":
            options["device"] = CPU
        return construct(*args, **options)

    return constructed


def run_on_cpu() -> None:
    """Let Megatron run in this process without a GPU; a second time changes nothing."""
    changed = _CpuTorch()
    for name in MODULES:
        module = import_module(name)
        if not isinstance(module.torch, _CpuTorch):
            setattr(module, "torch", changed)  # noqa: B010  # modules have no such attribute
    layers = import_module("megatron.core.tensor_parallel.layers")
    # It would advise a setting of CUDA's, in every process.
    layers.linear_with_grad_accumulation_and_async_allreduce.warned = True
