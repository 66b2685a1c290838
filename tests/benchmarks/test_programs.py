"""Every benchmark explains itself, without starting anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["step", "dispatch", "learning", "peers", "startup"])
def test_a_benchmark_prints_its_help(name: str, benchmarks_importable: Path) -> None:
    command = [sys.executable, str(benchmarks_importable / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"bench-{name}" in done.stdout
