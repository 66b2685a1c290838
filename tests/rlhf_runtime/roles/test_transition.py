"""Generation groups within a world of four ranks, fed from FSDP2's and from Megatron's layouts."""

from __future__ import annotations

import pytest

from ..world_of_processes import Worlds, failures, in_worlds, worlds_of
from .transition_cases import names

pytestmark = pytest.mark.ray

worlds = worlds_of("tests.rlhf_runtime.roles.transition_ranks")


@in_worlds([(4, "cpu"), (1, "cuda"), (4, "cuda")], names)
def test_transition(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
