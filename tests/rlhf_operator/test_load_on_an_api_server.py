"""An operator on a busy node: many jobs at once, beside programs that use all processor time."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind

from ..busy_programs import busy_programs
from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import Team, a_team, small
from .fake_head import AutoRun, FakeHeads

# The usual case, without busy programs: tests/benchmarks/test_operator_jobs.py.
pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(1200)]
NUM_JOBS = 100
NUM_BUSY_PROGRAMS = 4
ACCEPTANCE_SECONDS = 30.0
"""Limit of the time from a job's creation to its acceptance."""
END_SECONDS = 900.0


def test_many_jobs_at_once_on_a_busy_node(defined: Kubectl, tmp_path: Path) -> None:
    system = f"system-{uuid.uuid4().hex[:8]}"
    defined("create", "namespace", system)
    with a_team(defined, tmp_path, FakeHeads(AutoRun(steps=10, seconds=5.0))) as team:
        # As installed: with a Lease, which it cannot renew in time on such a node.
        team.operator.stop()
        settings = {**team.operator.settings, "operatorNamespace": system}
        team.operator = replace(team.operator, settings=settings, process=None, has_key_file=False)
        team.operator.start()
        with busy_programs(NUM_BUSY_PROGRAMS):
            jobs = [small(f"job-{index}") for index in range(NUM_JOBS)]
            for job in jobs:
                job["metadata"]["namespace"] = team.namespace
            defined("create", "--filename=-", stdin=yaml.safe_dump_all(jobs))
            wait_until(lambda: num_succeeded(team) == NUM_JOBS, END_SECONDS, "all jobs' end")
        process = team.operator.process
        assert process is not None and process.poll() is None
        assert "standing by" not in team.operator.log.read_text()
        seconds = acceptance_seconds(team)
        assert len(seconds) == NUM_JOBS and max(seconds) <= ACCEPTANCE_SECONDS, sorted(seconds)[
            -10:
        ]
    defined("delete", "namespace", system, "--wait=false")


def num_succeeded(team: Team) -> int:
    """Return how many jobs have succeeded."""
    phases = [
        job.get("status", {}).get("phase") for job in team.kube.list(Kind.JOB, team.namespace)
    ]
    assert "Failed" not in phases
    return phases.count("Succeeded")


def acceptance_seconds(team: Team) -> list[float]:
    """Return the seconds from each job's creation to its acceptance."""
    seconds = []
    for job in team.kube.list(Kind.JOB, team.namespace):
        created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
        seconds += [
            (datetime.fromisoformat(condition["lastTransitionTime"]) - created).total_seconds()
            for condition in job["status"]["conditions"]
            if condition["type"] == ConditionType.ACCEPTED
        ]
    return seconds
