"""The training engine against Hugging Face and plain torch, in real worlds of one and two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import fsdp_ranks as ranks
from .world_of_processes import failures, start_world


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder: Path = tmp_path_factory.mktemp(f"fsdp{request.param}")
    return start_world("tests.rlhf_runtime.engines.fsdp_ranks", request.param, folder)


@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_training_engine(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
