"""What the operator leaves alone: jobs that are settled, and jobs that are not its own."""

from __future__ import annotations

import re

import pytest

from rlhf_operator.kube.protocol import Kind

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
SOME_LOOKS = 40
"""At a running driver: they take longer than from one writing of progress to the next."""


def writes(team: Team) -> dict[str, float]:
    """The operator's own requests that change something, and everybody's that change an RLHFJob."""
    found: dict[str, float] = {}
    for line in team.operator.get("/metrics")[1].splitlines():
        if line.startswith("rlhf_operator_api_calls_total{") and "GET" not in line:
            found[line.partition(" ")[0]] = float(line.rpartition(" ")[2])
    for line in team.kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and 'resource="rlhfjobs"' in line:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if labels["verb"] in WRITES:
                found[line.partition(" ")[0]] = float(line.rpartition(" ")[2])
    return found


def looks(team: Team) -> float:
    return team.operator.metric('rlhf_operator_reconcile_seconds_count{outcome="done"}')


def written(team: Team, number: int) -> dict[str, float]:
    """What is written while the operator takes so many looks."""
    before, begin = writes(team), looks(team)
    wait_until(lambda: looks(team) >= begin + number, SECONDS, f"{number} looks")
    return {name: value for name, value in writes(team).items() if before.get(name) != value}


def test_settled_jobs_cause_no_writes(team: Team) -> None:
    """One that trains and has nothing new to say, one that has succeeded, waits, is refused."""
    team.kubectl("delete", "rlhfjobs", "--all", f"--namespace={team.namespace}")
    done = team.train("done")
    done.finish()
    team.wait_for("Succeeded", "done")
    team.wait_for_rest("done")
    team.submit(small("resting", suspend=True))
    team.wait_for("Suspended", "resting")
    team.submit(small("refused", image=None))
    wait_until(lambda: team.status("refused").reason == "NoImage", SECONDS, "a refusal")
    team.train("trains")
    wait_until(lambda: team.status("trains").progress is not None, SECONDS, "progress")
    wait_until(lambda: not written(team, 2), SECONDS, "the last words about what has happened")
    assert written(team, SOME_LOOKS) == {}


def test_a_job_of_another_namespace_is_left_alone(
    team: Team, namespace: str, defined: Kubectl
) -> None:
    defined.apply(namespace, {**small("foreign"), "metadata": {"name": "foreign"}})
    team.train("native")  # by then the other one would have been seen, too
    foreign = team.kube.get(Kind.JOB, namespace, "foreign")
    assert foreign is not None and foreign["status"]["observedGeneration"] == -1
    assert "finalizers" not in foreign["metadata"]
    assert team.kube.list(Kind.CLUSTER, namespace) == ()
    assert team.kube.list(Kind.EVENT, namespace) == ()


def test_a_job_of_another_controller_is_left_alone(team: Team) -> None:
    team.submit(small("managed", managedBy="kueue.x-k8s.io/multikueue"))
    begin = looks(team)
    team.train("ours")
    assert looks(team) > begin
    assert team.job("managed")["status"]["observedGeneration"] == -1
    assert team.left("managed") == [] and team.events("managed") == []
