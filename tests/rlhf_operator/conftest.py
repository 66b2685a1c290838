"""Fixtures of the operator's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..cluster.kubectl import Kubectl
from .awaited import now
from .cluster import Team, a_team
from .fake_head import FakeHeads
from .world import World


@pytest.fixture
def world() -> Iterator[World]:
    with FakeHeads() as heads:
        world = World(heads)
        yield world
        now(world.client.close())


@pytest.fixture(scope="session")
def team(defined: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A namespace with an operator, for all tests: each has jobs of its own name."""
    with a_team(defined, tmp_path_factory.mktemp("team")) as made:
        yield made
