"""Imports for tests of benchmarks, whose modules import each other by name."""

from __future__ import annotations

import pytest

from .programs import BENCHMARKS


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the benchmarks' folder on the path, as running one of them does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
