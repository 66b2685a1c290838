"""Roles and operations against plain torch on the whole batch, in worlds of one and two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, worlds_of_one_and_two
from . import role_ranks as ranks

pytestmark = pytest.mark.ray

world = worlds_of_one_and_two("tests.rlhf_runtime.roles.role_ranks")


@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_roles(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
