"""A second `rlhf standby`, beside that of the other runs of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cli import SHARED, start

pytestmark = pytest.mark.ray


def test_a_second_one_leaves_it_to_the_first(scratch: Path) -> None:
    second = start(["standby"], scratch / "second.log")
    try:
        assert second.wait() == 0
    finally:
        second.end()
    assert "another `rlhf standby` is active" in second.output
    assert all(server.is_running() for server in SHARED)
