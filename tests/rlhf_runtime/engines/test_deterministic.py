"""Deterministic kernels are used on GPUs, and only while a trainer computes."""

from __future__ import annotations

import pytest
import torch
import torch.utils.deterministic

from rlhf_runtime.engines.deterministic import deterministic_kernels


def settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def test_a_gpu_gets_deterministic_kernels_until_the_end() -> None:
    before = settings()
    with deterministic_kernels(torch.device("cuda", 0)):
        assert settings() == (True, False, False)
    assert settings() == before


def test_an_error_ends_them_too() -> None:
    before = settings()
    with pytest.raises(ZeroDivisionError), deterministic_kernels(torch.device("cuda", 0)):
        raise ZeroDivisionError
    assert settings() == before


def test_a_cpu_changes_nothing() -> None:
    before = settings()
    with deterministic_kernels(torch.device("cpu")):
        assert settings() == before
