"""Roles and operations against plain torch on the whole batch, in worlds of one and two ranks."""

from __future__ import annotations

import pytest

from ..world_of_processes import ONE_AND_TWO, Worlds, failures, in_worlds, worlds_of
from .role_ranks import scenarios

pytestmark = pytest.mark.ray

worlds = worlds_of("tests.rlhf_runtime.roles.role_ranks")


@in_worlds(ONE_AND_TWO, scenarios)
def test_roles(worlds: Worlds, size: int, device: str, scenario: str) -> None:
    assert not failures(worlds.of(size, device), scenario)
