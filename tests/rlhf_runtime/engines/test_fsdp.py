"""The training engine against Hugging Face and plain torch, in real worlds of one and two ranks."""

from __future__ import annotations

import pytest

from ..world_of_processes import ONE_AND_TWO, Worlds, failures, in_worlds, worlds_of
from .fsdp_ranks import scenarios

pytestmark = pytest.mark.ray

worlds = worlds_of("tests.rlhf_runtime.engines.fsdp_ranks")


@in_worlds(ONE_AND_TWO, scenarios)
def test_training_engine(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
