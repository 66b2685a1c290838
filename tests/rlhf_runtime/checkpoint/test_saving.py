"""Saving and going on, in real worlds of one and two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..engines.world_of_processes import failures, start_world
from . import saving_ranks as ranks


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder: Path = tmp_path_factory.mktemp(f"saving{request.param}")
    return start_world("tests.rlhf_runtime.checkpoint.saving_ranks", request.param, folder)


@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_saving(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
