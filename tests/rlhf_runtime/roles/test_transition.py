"""Generation groups within a world of four ranks, fed from FSDP2's and from Megatron's layouts."""

from __future__ import annotations

import pytest

from ..world_of_processes import Worlds, failures, on_gpus
from .transition_cases import names

pytestmark = pytest.mark.ray

WORLDS = {(4, "cpu"): (), (1, "cuda"): on_gpus(1), (4, "cuda"): on_gpus(4)}
"""Ranks and devices, each with the marks of its tests."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Worlds with the scenarios' results."""
    return Worlds("tests.rlhf_runtime.roles.transition_ranks", tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "device", "scenario"),
    [
        pytest.param(size, device, name, marks=marks)
        for (size, device), marks in WORLDS.items()
        for name in names(size)
    ],
)
def test_transition(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
