"""Megatron's stages against Hugging Face's models, in real worlds of one, two and four ranks."""

from __future__ import annotations

import pytest

from ..world_of_processes import Worlds, failures
from .megatron_cases import cases

pytestmark = pytest.mark.ray

SIZES = (1, 2, 4)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Worlds with the scenarios' results."""
    return Worlds("tests.rlhf_runtime.engines.megatron_ranks", tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "scenario"), [(size, name) for size in SIZES for name in cases(size)]
)
def test_megatron(worlds: Worlds, size: int, scenario: str) -> None:
    assert not failures(worlds.of(size), scenario)
