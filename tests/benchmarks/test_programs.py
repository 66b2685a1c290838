"""Every benchmark explains itself, without starting anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "step": "step",
    "dispatch": "dispatch",
    "learning": "learning",
    "peers": "peers",
    "placement": "placement",
    "startup": "startup",
    "recovery": "recovery",
    "operator": "operator_jobs",
    "reshard": "reshard",
    "estimator": "estimator",
    "papers": "papers",
}
"""Each target's program; one named operator would stand before Python's own module."""


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_benchmark_prints_its_help(name: str, benchmarks_importable: Path) -> None:
    command = [sys.executable, str(benchmarks_importable / f"{PROGRAMS[name]}.py"), "--help"]
    paths = [str(benchmarks_importable.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert f"bench-{name}" in done.stdout
