"""Deterministic kernels on GPUs, so that an update gives the same weights every time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

# torch declares no type of the property that it gives this module.
_SETTINGS: Any = torch.utils.deterministic


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
    # By the debug mode: `use_deterministic_algorithms` would change the compiler's settings, too.
    mode = torch.get_deterministic_debug_mode()
    was_filling = _SETTINGS.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    # Filling new tensors only finds faults, and writes all memory once more.
    _SETTINGS.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        _SETTINGS.fill_uninitialized_memory = was_filling
