"""Clusters that tests of the commands talk to."""

from __future__ import annotations

import pytest

from rlhf_cli.cluster.client import ClusterTarget
from rlhf_cli.cluster.remote import RemoteCluster

from ...cluster.kubectl import Kubectl
from .fake_cluster import FakeCluster

__all__ = ["fake", "remote"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster in memory, which all commands reach; its namespace is team."""
    cluster = FakeCluster("team")
    monkeypatch.setattr("rlhf_cli.cluster.connect.connect", lambda target: cluster)
    return cluster


@pytest.fixture
def remote(defined: Kubectl, namespace: str) -> RemoteCluster:
    """The session's cluster as its administrator, in a namespace of the test's own."""
    return RemoteCluster(ClusterTarget(defined.kubeconfig, namespace=namespace))
