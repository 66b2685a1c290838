"""Megatron's engine on meshes of one, two and four real ranks: what every training engine does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from .megatron_engine_cases import CASES, names


@pytest.fixture(scope="module")
def worlds() -> dict[int, Path]:
    """The folder of each world, filled when its scenarios have run."""
    return {}


@pytest.mark.parametrize(
    ("size", "scenario"), [(size, name) for size in CASES for name in names(size)]
)
def test_megatron_engine(
    worlds: dict[int, Path], tmp_path_factory: pytest.TempPathFactory, size: int, scenario: str
) -> None:
    if size not in worlds:
        folder = tmp_path_factory.mktemp(f"world-{size}-")
        worlds[size] = start_world("tests.rlhf_runtime.engines.megatron_engine_ranks", size, folder)
    assert not failures(worlds[size], scenario)
