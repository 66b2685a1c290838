"""Many jobs at once cost the API server and the operator little."""

from __future__ import annotations

from math import isfinite

import pytest

from ..cluster.programs import built
from ..heavy_starts import Heavy
from .programs import BENCHMARKS, run_smallest

NUM_JOBS = 24
IDLE_SECONDS = 3
CALLS_PER_JOB = 36
"""Mostly writes: reads come from watches."""
WRITES_PER_JOB = 30
"""Eight owned objects, and a status and an event per change that is seen.

A slow machine shows more changes of a starting cluster: 20 to 26 writes were measured.
"""
IDLE_READS = 2
"""The operator itself reads something every ten seconds; a read per job would be 24."""
MEBIBYTES = 400
FIRST_LOOK_SECONDS = 30
KINDS = ("waiting", "running")


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_many_jobs_at_once_take_few_calls_and_little_memory() -> None:
    built("kwok")
    # With fewer jobs, the operator's own requests would be the larger part.
    sizes = (f"--jobs={NUM_JOBS}", "--seconds=1", f"--idle={IDLE_SECONDS}")
    tests = {"PYTHONPATH": str(BENCHMARKS.parent)}  # as the Makefile does: it imports their cluster
    starts = {Heavy.CONTROL_PLANE: 1, Heavy.OPERATOR: 5}
    printed = run_smallest("operator", *sizes, variables=tests, starts=starts)
    measured = printed.json("operator")["measured"]
    assert measured["API calls per job"] <= CALLS_PER_JOB, measured
    assert measured["API writes per job"] <= WRITES_PER_JOB, measured
    assert measured["peak memory MiB"] <= MEBIBYTES, measured
    assert measured[f"writes in {IDLE_SECONDS} idle seconds"] == 0, measured
    idle_reads = measured["reads per ended job and hour"] * NUM_JOBS * IDLE_SECONDS / 3600
    assert idle_reads <= IDLE_READS, measured
    # Too few jobs for limits.
    for name in ("MiB per 1,000 ended jobs", *(f"reads per {k} job and hour" for k in KINDS)):
        assert isfinite(measured[name]), measured
    assert printed.names("operator") == list(measured)


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_an_operator_that_starts_among_many_jobs_soon_looks_at_all() -> None:
    built("kwok")
    sizes = ("--ended=500", "--live=24", "--rest=5", "--watch=20")
    tests = {"PYTHONPATH": str(BENCHMARKS.parent)}
    starts = {Heavy.CONTROL_PLANE: 1, Heavy.OPERATOR: 3}
    printed = run_smallest("fleet", *sizes, variables=tests, starts=starts)
    measured = printed.json("fleet")["measured"]
    assert measured["seconds until all were looked at"] <= FIRST_LOOK_SECONDS, measured
    assert measured["peak memory MiB"] <= MEBIBYTES, measured
    assert printed.names("operator") == list(measured)
