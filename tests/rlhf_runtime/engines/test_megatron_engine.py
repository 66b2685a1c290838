"""Megatron's engine on meshes of one, two and four real ranks: what every training engine does."""

from __future__ import annotations

import pytest

from ..world_of_processes import Worlds, failures, in_worlds, worlds_of
from .megatron_engine_cases import CASES, names

pytestmark = pytest.mark.ray

worlds = worlds_of("tests.rlhf_runtime.engines.megatron_engine_ranks")


@in_worlds([*((size, "cpu") for size in CASES), (1, "cuda")], names)
def test_megatron_engine(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
