"""A vocabulary that three real ranks share, against whole logits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from . import vocab_parallel_ranks as ranks


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder: Path = tmp_path_factory.mktemp("world")
    return start_world("tests.rlhf_runtime.numerics.vocab_parallel_ranks", 3, folder)


@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_vocab_parallel(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
