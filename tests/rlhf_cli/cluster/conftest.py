"""Clusters that tests of the commands talk to."""

from __future__ import annotations

import pytest

from rlhf_cli.cluster.client import Target
from rlhf_cli.cluster.official import OfficialCluster

from ...cluster.kubectl import Kubectl
from .fake_cluster import FakeCluster

__all__ = ["fake", "official"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster in memory, which all commands reach; its namespace is team."""
    cluster = FakeCluster("team")
    monkeypatch.setattr("rlhf_cli.cluster.connect.connect", lambda target: cluster)
    return cluster


@pytest.fixture
def official(defined: Kubectl, namespace: str) -> OfficialCluster:
    """The session's cluster as its administrator, in a namespace of the test's own."""
    return OfficialCluster(Target(defined.kubeconfig, namespace=namespace))
