"""Roles on parts of a real world of four ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from . import mesh_ranks as ranks

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder: Path = tmp_path_factory.mktemp("world")
    return start_world("tests.rlhf_runtime.engines.mesh_ranks", 4, folder)


@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_meshes(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
