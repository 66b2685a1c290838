"""Megatron's stages against Hugging Face's models, in real worlds of one, two and four ranks."""

from __future__ import annotations

import pytest

from ..world_of_processes import Worlds, failures, in_worlds, worlds_of
from .megatron_cases import cases

pytestmark = pytest.mark.ray

worlds = worlds_of("tests.rlhf_runtime.engines.megatron_ranks")


@in_worlds([(1, "cpu"), (2, "cpu"), (4, "cpu")], cases)
def test_megatron(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
