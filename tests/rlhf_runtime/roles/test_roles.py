"""Roles and operations against plain torch on the whole batch, in worlds of one and two ranks."""

from __future__ import annotations

import pytest

from ..world_of_processes import Worlds, failures, on_gpus
from . import role_ranks as ranks

pytestmark = pytest.mark.ray

WORLDS = {(1, "cpu"): (), (2, "cpu"): (), (1, "cuda"): on_gpus(1)}
"""Ranks and devices, each with the marks of its tests."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Worlds with the scenarios' results."""
    return Worlds("tests.rlhf_runtime.roles.role_ranks", tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "device", "scenario"),
    [
        pytest.param(size, device, name, marks=marks)
        for (size, device), marks in WORLDS.items()
        for name in ranks.scenarios(size, device)
    ],
)
def test_roles(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
