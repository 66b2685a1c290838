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
RESOURCES = ("rlhfjobs", "rayclusters", "configmaps", "networkpolicies", "secrets", "events")


def writes(kubectl: Kubectl) -> dict[str, float]:
    """Requests that the API server took so far which change the operator's kinds."""
    found: dict[str, float] = {}
    for line in kubectl("get", "--raw", "/metrics").splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if labels["verb"] in WRITES and labels["resource"] in RESOURCES:
            key = " ".join((labels["verb"], labels["resource"], labels["subresource"]))
            found[key] = found.get(key, 0.0) + float(line.rpartition(" ")[2])
    return found


def looks(team: Team) -> float:
    return team.operator.metric('rlhf_operator_reconcile_seconds_count{outcome="done"}')


def own_writes(team: Team) -> float:
    methods = ("POST", "PATCH", "DELETE")
    names = (f'rlhf_operator_api_calls_total{{method="{each}"}}' for each in methods)
    return sum(map(team.operator.metric, names))


def test_settled_jobs_cause_no_writes(team: Team) -> None:
    """One that trains and has nothing new to say, one that has succeeded, waits, is refused."""
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

    def is_quiet(number: int) -> bool:
        """Whether so many looks were taken without a write."""
        own, others, begin = own_writes(team), writes(team.kubectl), looks(team)
        wait_until(lambda: looks(team) >= begin + number, SECONDS, f"{number} looks")
        return own_writes(team) == own and writes(team.kubectl) == others

    wait_until(lambda: is_quiet(2), SECONDS, "the last words of what happened before")
    assert is_quiet(12)
    requests = team.heads.requests
    wait_until(lambda: team.heads.requests > requests, SECONDS, "another look at the driver")


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
