"""Deterministic kernels are used on GPUs, and only while a trainer computes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.utils.deterministic

from rlhf_runtime.engines import base
from rlhf_runtime.engines.base import EngineBase, ResidentTensors
from rlhf_runtime.engines.deterministic import deterministic_kernels
from rlhf_runtime.engines.training import ReadLogProbs, WeightedLoss
from rlhf_runtime.hooks import noop
from rlhf_runtime.reshard.views import Views


class OnGpu(EngineBase):
    """An engine on a GPU that records the kernels of its computations."""

    def __init__(self) -> None:
        parallel: Any = SimpleNamespace(device=torch.device("cuda", 0), max=lambda values: values)
        super().__init__(parallel, noop)
        self._optimizer = SimpleNamespace(step=lambda: 0.0)  # type: ignore[assignment]
        self.is_strict: dict[str, bool] = {}

    def _infer(self, *_: Any) -> None:
        self._record("infer")

    def _forward(self, _: Any) -> None:
        self._record("forward")

    def _forward_backward(self, _: Any) -> None:
        self._record("forward and backward")

    def master_views(self) -> Views:
        return {}

    def _resident_tensors(self) -> ResidentTensors:
        return ResidentTensors(())

    def _record(self, name: str) -> None:
        self.is_strict[name] = torch.get_deterministic_debug_mode() == 2


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


def test_an_engine_computes_nothing_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "Offloading", lambda _: SimpleNamespace(require=noop))
    engine: Any = OnGpu()
    engine.infer([], ReadLogProbs(), noop)
    engine.update([WeightedLoss(ReadLogProbs(), (), noop)])  # type: ignore[arg-type]
    assert engine.is_strict == {"infer": True, "forward": True, "forward and backward": True}
    assert torch.get_deterministic_debug_mode() == 0
