"""The operator's process: what it serves, how it starts and how it ends."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from rlhf_kube.kinds import Kind

from ..waiting import wait_until
from .cluster import SECONDS, Team
from .operator_process import run_to_end

pytestmark = pytest.mark.cluster


def test_it_tells_of_its_health(team: Team) -> None:
    assert team.operator.get("/healthz") == (200, "ok\n")
    assert team.operator.get("/readyz") == (200, "ok\n")
    status, text = team.operator.get("/nothing")
    assert status == 404 and "/metrics" in text


def test_gauges_of_a_job_come_and_go_with_it(team: Team) -> None:
    labels = f'job="gauged",namespace="{team.namespace}"'

    def series() -> list[str]:
        return [line for line in team.operator.get("/metrics")[1].splitlines() if labels in line]

    head = team.train("gauged")
    head.advance(4, checkpoint=3, metrics={"reward/mean": 0.5})
    wait_until(lambda: f"rlhf_job_step{{{labels}}} 4.0" in series(), SECONDS, "four steps")
    shown = {line.partition("{")[0] for line in series()}
    assert {"rlhf_job_gpus", "rlhf_job_phase", "rlhf_job_reward", "rlhf_job_total_steps"} <= shown
    assert f'rlhf_job_phase{{{labels},phase="Running"}} 1.0' in series()
    team.delete("rlhfjob", "gauged")
    wait_until(lambda: team.kube.get(Kind.JOB, team.namespace, "gauged") is None, SECONDS, "no job")
    wait_until(lambda: series() == [], SECONDS, "no series of a job that is gone")


def test_it_ends_soon_when_told(team: Team) -> None:
    team.train("lasting")
    said = team.operator.log.stat().st_size
    begin = time.monotonic()
    code = team.operator.stop(signal.SIGTERM)
    seconds = time.monotonic() - begin
    last_words = team.operator.log.read_bytes()[said:].decode()
    team.operator.start()
    assert code == 0 and seconds < 15
    assert "Traceback" not in last_words
    assert team.phase("lasting") == "Running"


def test_outside_of_a_cluster_it_wants_a_key(team: Team, tmp_path: Path) -> None:
    done = run_to_end(team.kubectl.kubeconfig, tmp_path)
    assert done.returncode == 2 and "--key-file" in done.stderr
