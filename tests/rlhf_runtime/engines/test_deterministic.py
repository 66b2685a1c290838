"""Deterministic kernels are used on GPUs, and only while a trainer computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.utils.deterministic

from rlhf_runtime.engines.deterministic import deterministic_kernels


def settings() -> tuple[bool, bool, bool, bool]:
    return (
        inductor_config.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.fixture(params=["default", "warn", "error"])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool, bool, bool]]:
    """The settings before, of three kinds."""
    torch.set_deterministic_debug_mode(request.param)
    yield settings()
    torch.set_deterministic_debug_mode("default")


def test_a_gpu_gets_deterministic_kernels_until_the_end(
    before: tuple[bool, bool, bool, bool],
) -> None:
    compiler, *_ = before
    with deterministic_kernels(torch.device("cuda", 0)):
        assert settings() == (compiler, True, False, False)
    assert settings() == before


def test_an_error_ends_them_too(before: tuple[bool, bool, bool, bool]) -> None:
    with pytest.raises(ZeroDivisionError), deterministic_kernels(torch.device("cuda", 0)):
        raise ZeroDivisionError
    assert settings() == before


def test_a_cpu_changes_nothing(before: tuple[bool, bool, bool, bool]) -> None:
    with deterministic_kernels(torch.device("cpu")):
        assert settings() == before
