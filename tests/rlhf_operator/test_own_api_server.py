"""Clusters that lack something, and an API server that is gone for a while.

The tests share a cluster of their own and go from one that knows nothing of RLHFJobs to one that
has lost KubeRay.
"""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind

from ..cluster.definition import define
from ..cluster.devcluster import DevCluster
from ..cluster.kubectl import Kubectl
from ..cluster.session import own_cluster
from ..waiting import wait_until
from .cluster import SECONDS, a_team, small
from .operator_process import run_to_end

pytestmark = pytest.mark.cluster
IMPATIENT = {
    "rlhf_operator.process.app:PING_SECONDS": 2.0,
    "rlhf_operator.process.app:CHECK_SECONDS": 0.5,
}
"""It soon asks again whether the API server is there, and KubeRay's kind."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with own_cluster("operator", "--fake-nodes", "1") as cluster:
        yield cluster


@pytest.fixture
def own_kubectl(cluster: DevCluster, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster.state / "bin" / "kubectl", cluster.kubeconfig, tmp_path / "cache")


def test_without_our_definition_it_says_what_to_install(
    cluster: DevCluster, tmp_path: Path
) -> None:
    done = run_to_end(cluster.kubeconfig, tmp_path, "--key-file", str(tmp_path / "key"))
    assert done.returncode == 4
    assert "has no kind rlhfjobs.rlhf-operator.dev/v1alpha1: apply" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_goes_on_when_the_api_server_comes_back(
    cluster: DevCluster, own_kubectl: Kubectl, tmp_path: Path
) -> None:
    define(own_kubectl)
    with a_team(own_kubectl, tmp_path, constants=IMPATIENT) as team:
        head = team.train("steady")
        os.kill(cluster.pids()["kube-apiserver"], signal.SIGKILL)
        wait_until(
            lambda: team.operator.metric("rlhf_operator_last_answer_seconds ") > 5,
            SECONDS,
            "the operator missing its API server",
        )
        head.advance(4, checkpoint=3)
        cluster.up()
        head.finish()
        team.wait_for("Succeeded", "steady")
        team.wait_for_rest("steady")
        assert head.submitted == ["steady-1-0"]
        assert team.status("steady").restarts.total == 0
        team.train("later").finish()  # watches are alive again
        team.wait_for("Succeeded", "later")
        assert "Traceback" not in team.operator.log.read_text()


def test_without_kuberay_jobs_wait_and_say_so_until_it_is_there(
    own_kubectl: Kubectl, tmp_path: Path
) -> None:
    define(own_kubectl)
    kind = json.loads(own_kubectl("get", "crd", "rayclusters.ray.io", "--output=json"))
    own_kubectl("delete", "crd", "rayclusters.ray.io")
    with a_team(own_kubectl, tmp_path, constants=IMPATIENT) as team:
        team.submit(small("early"))
        team.wait_for_condition("early", ConditionType.STALLED, "True", "KubeRayMissing")
        assert "install KubeRay 1.6 or newer" in team.status("early").message
        assert team.condition("early", ConditionType.ACCEPTED) == ("True", "Accepted")
        own = {name: kind[name] for name in ("apiVersion", "kind", "spec")}
        name = kind["metadata"]["name"]
        made = json.dumps({**own, "metadata": {"name": name}})
        own_kubectl("create", "--filename=-", stdin=made)

        def is_made() -> bool:
            return team.kube.get(Kind.CLUSTER, team.namespace, "early-1") is not None

        wait_until(is_made, SECONDS, "its RayCluster")
        assert "Traceback" not in team.operator.log.read_text()


def test_a_kuberay_that_lacks_what_is_needed_is_told_until_it_is_upgraded(
    own_kubectl: Kubectl, tmp_path: Path
) -> None:
    """Its definition without the field that 1.6 brought: what the real API server says of that is
    understood."""
    define(own_kubectl)
    current = json.loads(own_kubectl("get", "crd", "rayclusters.ray.io", "--output=json"))
    old = copy.deepcopy(current)
    for version in old["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"].pop("authOptions", None)
    own_kubectl("replace", "--filename=-", stdin=json.dumps(old))
    with a_team(own_kubectl, tmp_path, constants=IMPATIENT) as team:
        team.submit(small("upgraded"))
        team.wait_for_condition("upgraded", ConditionType.CLUSTER_READY, "False", "KubeRayTooOld")
        conditions = team.status("upgraded").conditions
        told = next(each.message for each in conditions if each.reason == "KubeRayTooOld")
        assert "allowed 1.6 or newer" in told and "spec.authOptions" in told
        seen = own_kubectl("get", "crd", "rayclusters.ray.io", "--output=json")
        version = json.loads(seen)["metadata"]["resourceVersion"]
        current["metadata"]["resourceVersion"] = version
        own_kubectl("replace", "--filename=-", stdin=json.dumps(current))
        wait_until(
            lambda: team.kube.get(Kind.CLUSTER, team.namespace, "upgraded-1") is not None,
            SECONDS,
            "its RayCluster",
        )
        assert team.status("upgraded").restarts.total == 0
