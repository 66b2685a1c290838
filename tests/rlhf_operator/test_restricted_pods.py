"""The pods of a job are taken by a namespace that enforces the restricted profile."""

from __future__ import annotations

import pytest

from rlhf_operator.kube.protocol import Kind

from .cluster import Team

pytestmark = pytest.mark.cluster
CODE = {"git": {"url": "https://example.com/team/rewards.git", "revision": "a" * 40}}


@pytest.fixture
def restricted(team: Team) -> Team:
    label = "pod-security.kubernetes.io/enforce=restricted"
    team.kubectl("label", "--overwrite", "namespace", team.namespace, label)
    return team


@pytest.mark.parametrize("more", [{}, {"code": CODE}], ids=["plain", "code-from-git"])
def test_head_and_workers_are_restricted(restricted: Team, more: dict[str, object]) -> None:
    name = "-".join(["guarded", *more])
    head = restricted.train(name, **more)
    assert len(restricted.names(Kind.POD, name)) == 2
    for pod in restricted.objects(Kind.POD, name):
        assert pod["spec"]["automountServiceAccountToken"] is False
        mounts = [each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]]
        assert not any("serviceaccount" in each for each in mounts)
    head.finish()
    restricted.wait_for("Succeeded", name)
