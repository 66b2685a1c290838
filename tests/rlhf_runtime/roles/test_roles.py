"""Roles and operations against plain torch on the whole batch, in worlds of one and two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..engines.world_of_processes import failures, start_world
from . import role_ranks as ranks


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder: Path = tmp_path_factory.mktemp(f"roles{request.param}")
    return start_world("tests.rlhf_runtime.roles.role_ranks", request.param, folder)


@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_roles(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
