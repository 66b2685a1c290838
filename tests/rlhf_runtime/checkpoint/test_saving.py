"""Saving and going on, in real worlds of one and two ranks."""

from __future__ import annotations

import pytest

from ..world_of_processes import ONE_AND_TWO, Worlds, failures, in_worlds, worlds_of
from .saving_ranks import SCENARIOS

pytestmark = pytest.mark.ray

worlds = worlds_of("tests.rlhf_runtime.checkpoint.saving_ranks")


@in_worlds(ONE_AND_TWO, lambda _: SCENARIOS)
def test_saving(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
