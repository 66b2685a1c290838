"""Storages that go to the host and back: each once, whatever views there are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from rlhf_runtime.engines.offloading import Offloading
from rlhf_runtime.errors import NotEnoughResources, NotLoaded

CPU = torch.device("cpu")


def test_views_are_as_good_afterwards_as_before() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    part, turned, empty = whole[1:3, 2:], whole.t(), torch.zeros(0)
    lost = torch.ones(5)
    expected = part.clone()
    moved = Offloading(CPU)
    moved.offload([part, whole, turned, empty], [lost])
    assert moved.is_offloaded
    assert whole.untyped_storage().nbytes() == lost.untyped_storage().nbytes() == 0
    moved.load()
    moved.require()
    assert torch.equal(part, expected) and torch.equal(turned.t(), whole)
    assert lost.untyped_storage().nbytes() == 5 * 4
    whole.add_(1)
    assert torch.equal(part, expected + 1), "it is still the same storage"


def test_less_is_kept_the_second_time_and_more_the_third() -> None:
    small, large = torch.arange(3), torch.arange(1000)
    moved = Offloading(CPU)
    for tensors in ([small, large], [small], [large, small]):
        for tensor in tensors:
            tensor.add_(1)
        expected = [tensor.clone() for tensor in tensors]
        moved.offload(tensors)
        moved.load()
        assert all(torch.equal(one, other) for one, other in zip(tensors, expected, strict=True))


def test_what_is_away_is_not_there() -> None:
    moved = Offloading(CPU)
    moved.require()
    moved.offload([torch.ones(2)])
    with pytest.raises(NotLoaded, match="have left the device.*the plan lacks a load"):
        moved.require()


def test_nothing_is_given_back_where_the_host_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    moved, kept = Offloading(CPU), torch.ones(2)
    with pytest.raises(NotEnoughResources, match="8 bytes in .*missing.*set TMPDIR"):
        moved.offload([kept])
    assert not moved.is_offloaded and kept.tolist() == [1, 1]
