"""What the operator leaves alone: jobs that are settled, and jobs that are not its own."""

from __future__ import annotations

import pytest

from rlhf_kube.kinds import Kind

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster
SOME_RECONCILES = 40
"""At a running driver: they take longer than from one writing of progress to the next."""


def writes(team: Team) -> dict[str, str]:
    """The operator's own requests that change something, by method, and each job's version, which
    everybody's changes count up."""
    found = {}
    for line in team.operator.get("/metrics")[1].splitlines():
        if line.startswith("rlhf_operator_api_calls_total{") and "GET" not in line:
            name, _, number = line.rpartition(" ")
            found[name] = number
    for job in team.kube.list(Kind.JOB, team.namespace):
        found[job["metadata"]["name"]] = job["metadata"]["resourceVersion"]
    return found


def reconciles(team: Team) -> float:
    return team.operator.metric('rlhf_operator_reconcile_seconds_count{outcome="done"}')


def written(team: Team, number: int) -> dict[str, str]:
    """What is written during so many reconciles."""
    before, begin = writes(team), reconciles(team)
    wait_until(lambda: reconciles(team) >= begin + number, SECONDS, f"{number} reconciles")
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
    assert written(team, SOME_RECONCILES) == {}


def test_a_job_of_another_namespace_is_left_alone(
    team: Team, namespace: str, defined: Kubectl
) -> None:
    defined.apply(namespace, {**small("foreign"), "metadata": {"name": "foreign"}})
    team.train("native")  # by then the other one would have been seen, too
    foreign = team.kube.get(Kind.JOB, namespace, "foreign")
    assert foreign is not None and foreign["status"]["observedGeneration"] == -1
    assert team.kube.list(Kind.CLUSTER, namespace) == ()
    assert team.kube.list(Kind.EVENT, namespace) == ()


def test_a_job_of_another_controller_is_left_alone(team: Team) -> None:
    team.submit(small("managed", managedBy="kueue.x-k8s.io/multikueue"))
    begin = reconciles(team)
    team.train("ours")
    assert reconciles(team) > begin
    assert team.job("managed")["status"]["observedGeneration"] == -1
    assert team.left("managed") == [] and team.events("managed") == []
