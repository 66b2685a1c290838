"""What end-to-end tests share: a real node with this project's images, and a claim of a volume.

The node's cluster is this session's own, or the one that RLHF_TEST_KUBECONFIG names. They run only
when `-m e2e` chooses them: they need root, and the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster.devcluster import DevCluster, output_of
from ..cluster.kubectl import Kubectl
from ..cluster.session import own_cluster
from .volume import CheckpointVolume


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless they were asked for."""
    if "e2e" in config.option.markexpr:
        return
    left_out = [item for item in items if Path(__file__).parent in item.path.parents]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[DevCluster]:
    """A cluster with a real node that has the images."""
    named = os.environ.get("RLHF_TEST_KUBECONFIG")
    if named:
        cluster = DevCluster(Path(named).parent)
        output_of(cluster.run("images/load.sh"))
        yield cluster
        return
    with own_cluster("node", "--node", "--fake-gpus", "2") as cluster:
        output_of(cluster.run("images/load.sh"))
        yield cluster


@pytest.fixture(scope="session")
def kubeconfig(node_cluster: DevCluster) -> Path:
    """The administrator's kubeconfig; the fixtures kubectl and namespace use it."""
    return node_cluster.kubeconfig


@pytest.fixture
def restricted_namespace(kubectl: Kubectl, namespace: str) -> str:
    """A namespace of the test's own that takes only pods of the standard "restricted"."""
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


@pytest.fixture
def checkpoints(
    kubectl: Kubectl, node_cluster: DevCluster, restricted_namespace: str
) -> Iterator[CheckpointVolume]:
    """The namespace's claim `checkpoints`, and where its files lie on this machine."""
    volume = CheckpointVolume(restricted_namespace, node_cluster.state / "volumes")
    volume.provide(kubectl)
    yield volume
    volume.remove(kubectl)
