"""Fixtures of the operator's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..cluster.kubectl import Kubectl
from .awaited import now
from .cluster import Team, a_team
from .fake_head import FakeHeads
from .troubled_world import TroubledWorld, troubled_world
from .world import World


@pytest.fixture
def world() -> Iterator[World]:
    with FakeHeads() as heads:
        world = World(heads)
        yield world
        now(world.client.close())


@pytest.fixture
def troubled() -> Iterator[TroubledWorld]:
    """A world with a job; pods end in `run_kubelets`; two drivers at a time fail the test."""
    with troubled_world() as world:
        yield world


@pytest.fixture(scope="session")
def team(defined: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A namespace with an operator, for all tests: each has jobs of its own name."""
    with a_team(defined, tmp_path_factory.mktemp("team")) as made:
        yield made
