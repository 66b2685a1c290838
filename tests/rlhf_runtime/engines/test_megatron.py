"""Megatron's stages against Hugging Face's models, in real worlds of one, two and four ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from .megatron_cases import cases

SIZES = (1, 2, 4)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of each world, filled when its scenarios have run."""
    return {}


@pytest.mark.parametrize(
    ("size", "scenario"), [(size, name) for size in SIZES for name in cases(size)]
)
def test_megatron(
    worlds: dict[int, Path], tmp_path_factory: pytest.TempPathFactory, size: int, scenario: str
) -> None:
    if size not in worlds:
        folder = tmp_path_factory.mktemp(f"world-{size}-")
        worlds[size] = start_world("tests.rlhf_runtime.engines.megatron_ranks", size, folder)
    assert not failures(worlds[size], scenario)
