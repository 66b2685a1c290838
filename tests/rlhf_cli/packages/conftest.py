"""An index in a folder, and a store of packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.packages.installation import PackageStore

from .wheels import Index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path / "index").used_by(monkeypatch)


@pytest.fixture
def said() -> list[str]:
    """Lines that the store shows."""
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> Callable[..., PackageStore]:
    """Makes stores in one folder of sets."""

    def make(run: Path | None = None) -> PackageStore:
        return PackageStore(tmp_path / "sets", run, said.append)

    return make
