"""The pods of a job are taken by a namespace that enforces the restricted profile."""

from __future__ import annotations

import pytest

from rlhf_kube.kinds import Kind

from ..cluster.devcluster import CommandFailed
from .cluster import Team

pytestmark = pytest.mark.cluster
CODE = {"git": {"url": "https://example.com/team/rewards.git", "revision": "a" * 40}}


def test_the_namespace_refuses_other_pods(team: Team) -> None:
    container = {"name": "main", "image": "localhost/none:1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loose"}}
    with pytest.raises(CommandFailed, match='violates PodSecurity "restricted'):
        team.kubectl.apply(team.namespace, {**pod, "spec": {"containers": [container]}})


@pytest.mark.parametrize("more", [{}, {"code": CODE}], ids=["plain", "code-from-git"])
def test_head_and_workers_are_restricted(team: Team, more: dict[str, object]) -> None:
    name = "-".join(["guarded", *more])
    head = team.train(name, **more)
    assert len(team.names(Kind.POD, name)) == 2
    for pod in team.objects(Kind.POD, name):
        assert pod["spec"]["automountServiceAccountToken"] is False
        mounts = [each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]]
        assert not any("serviceaccount" in each for each in mounts)
    head.finish()
    team.wait_for("Succeeded", name)
