"""Megatron's engine on meshes of one, two and four real ranks: what every training engine does."""

from __future__ import annotations

import pytest

from ..world_of_processes import ON_GPU, Worlds, failures
from .megatron_engine_cases import CASES, names

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Worlds with the scenarios' results."""
    return Worlds("tests.rlhf_runtime.engines.megatron_engine_ranks", tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "scenario"), [(size, name) for size in CASES for name in names(size)]
)
def test_megatron_engine(worlds: Worlds, size: int, scenario: str) -> None:
    assert not failures(worlds.of(size), scenario)


@pytest.mark.parametrize("scenario", [pytest.param(name, marks=ON_GPU) for name in names(1)])
def test_megatron_engine_on_a_gpu(worlds: Worlds, scenario: str) -> None:
    assert not failures(worlds.of(1, "cuda"), scenario)
