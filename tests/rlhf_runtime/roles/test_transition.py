"""Generation groups within a world of four ranks, fed from FSDP2's and from Megatron's layouts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from .transition_cases import CASES


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder = tmp_path_factory.mktemp(f"transition-{os.getpid()}-")
    return start_world("tests.rlhf_runtime.roles.transition_ranks", 4, folder)


@pytest.mark.parametrize("scenario", ["copies are counted on both sides", *CASES])
def test_transition(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
