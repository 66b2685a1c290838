"""Clusters that tests of the commands talk to."""

from __future__ import annotations

import pytest

from rlhf_cli.cluster.connect import ClusterTarget, connect
from rlhf_kube.protocol import Cluster

from ...cluster.kubectl import Kubectl
from ...rlhf_kube.fake_kube import FakeKube

__all__ = ["fake", "remote"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """A cluster in memory, which all commands reach; its namespace is team."""
    cluster = FakeKube()
    monkeypatch.setattr("rlhf_cli.cluster.connect.connect", lambda target: cluster)
    return cluster


@pytest.fixture
def remote(defined: Kubectl, namespace: str) -> Cluster:
    """The session's cluster as its administrator, in a namespace of the test's own."""
    return connect(ClusterTarget(defined.kubeconfig, namespace=namespace))
