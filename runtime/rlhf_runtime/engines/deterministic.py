"""Deterministic kernels on GPUs, so that an update gives the same weights every time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

# torch replaces this module by an object with a property, which type checkers do not see.
torch_deterministic: Any = torch.utils.deterministic


@contextmanager
def deterministic_kernels(device: torch.device) -> Iterator[None]:
    """Make torch use deterministic kernels on a GPU. No-op on CPUs, whose kernels all are.

    Raises:
        RuntimeError: torch has no deterministic kernel for an operation.
    """
    if device.type == "cpu":
        yield
        return
    # Gradients of attention and sums over rows otherwise add in the order in which threads finish.
    # Not for the whole process: vLLM calls operations without a deterministic kernel.
    was_strict = torch.are_deterministic_algorithms_enabled()
    was_filling = torch_deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling new tensors only finds faults, and writes all memory once more.
    torch_deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_strict)
        torch_deterministic.fill_uninitialized_memory = was_filling
