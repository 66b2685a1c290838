"""Many jobs at once cost the API server and the operator little."""

from __future__ import annotations

from math import isfinite

import pytest

from ..cluster.programs import built
from ..heavy_starts import Heavy
from .programs import BENCHMARKS, run_smallest

NUM_JOBS = 24
CALLS_PER_JOB = 30
"""Mostly writes: what is there, watches tell."""
WRITES_PER_JOB = 25
"""A finalizer, eight children, what the status says at each turn, and an event for each."""
MEBIBYTES = 400
KINDS = ("waiting", "running")


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_many_jobs_at_once_take_few_calls_and_little_memory() -> None:
    built("kwok")
    # Of fewer jobs, what the operator asks for by itself would be most of what is counted.
    sizes = (f"--jobs={NUM_JOBS}", "--seconds=5", "--idle=5")
    tests = {"PYTHONPATH": str(BENCHMARKS.parent)}  # as the Makefile does: it imports their cluster
    starts = {Heavy.CONTROL_PLANE: 1, Heavy.OPERATOR: 5}
    printed = run_smallest("operator", *sizes, variables=tests, starts=starts)
    measured = printed.json("operator")["measured"]
    assert measured["API calls per job"] <= CALLS_PER_JOB, measured
    assert measured["of them writes"] <= WRITES_PER_JOB, measured
    assert measured["peak memory MiB"] <= MEBIBYTES, measured
    assert measured["writes in 5 idle seconds"] == 0, measured
    assert measured["reads per ended job and hour"] <= 20, measured
    # What too few jobs were counted for to say more about.
    for name in ("MiB per 1,000 ended jobs", *(f"reads per {k} job and hour" for k in KINDS)):
        assert isfinite(measured[name]), measured
    assert printed.names("operator") == list(measured)
