"""Many jobs at once cost the API server and the operator little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..cluster.devcluster import output_of
from ..cluster.programs import built

NUM_JOBS = 60
CALLS_PER_JOB = 35
"""Mostly writes: what is there, watches tell."""
WRITES_PER_JOB = 25
"""A finalizer, eight children, what the status says at each turn, and an event for each."""
MEBIBYTES = 400


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_sixty_jobs_at_once_take_few_calls_and_little_memory(
    benchmarks_importable: Path,
) -> None:
    built("kwok")
    program = [sys.executable, str(benchmarks_importable / "operator_jobs.py")]
    done = subprocess.run(
        [*program, f"--jobs={NUM_JOBS}", "--seconds=5", "--idle=10", "--waiting=0"],
        env={**os.environ, "PYTHONPATH": str(benchmarks_importable.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    measured = json.loads(output_of(done).splitlines()[-1])["measured"]
    assert measured["API calls per job"] <= CALLS_PER_JOB, measured
    assert measured["of them writes"] <= WRITES_PER_JOB, measured
    assert measured["peak memory MiB"] <= MEBIBYTES, measured
    assert measured["writes in 10 idle seconds"] == 0, measured
    assert measured["reads per ended job and hour"] <= 20, measured
