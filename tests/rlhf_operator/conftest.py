"""Fixtures of the operator's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fake_head import FakeHeads
from .world import World


@pytest.fixture
def world() -> Iterator[World]:
    with FakeHeads() as heads:
        yield World(heads)
