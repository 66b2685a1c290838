"""The benchmarks are programs of a folder of their own; their modules import each other by name."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the benchmarks' folder on the path, as running one of them does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return BENCHMARKS
