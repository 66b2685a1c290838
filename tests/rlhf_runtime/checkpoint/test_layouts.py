"""Checkpoints that are saved under one layout and loaded under others, in a world of four ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from .layout_cases import SCENARIOS

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    return start_world("tests.rlhf_runtime.checkpoint.layout_ranks", 4, folder)


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_layouts(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
