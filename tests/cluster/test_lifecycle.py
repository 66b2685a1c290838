"""cluster-up starts and repairs, cluster-status tells, cluster-down leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..waiting import wait_until
from .devcluster import DevCluster
from .kubectl import Kubectl
from .session import own_cluster

pytestmark = pytest.mark.cluster
PARTS = {
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "ray-operator",
}


@pytest.fixture(scope="module")
def ambient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for the user's kubeconfig."""
    file = tmp_path_factory.mktemp("user") / "config"
    file.write_text("the user's")
    return file


@pytest.fixture(scope="module")
def cluster(ambient: Path) -> Iterator[DevCluster]:
    with own_cluster("lifecycle", "--fake-nodes", "1", KUBECONFIG=str(ambient)) as cluster:
        yield cluster


@pytest.fixture
def own_kubectl(cluster: DevCluster, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster.state / "bin" / "kubectl", cluster.kubeconfig, tmp_path)


def has_ended(pid: int) -> bool:
    """Whether a killed process is gone, which takes a busy machine a moment."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_every_part_runs(cluster: DevCluster) -> None:
    assert set(cluster.pids()) == PARTS
    assert set(cluster.pids().values()) == set(cluster.processes())


def test_status_says_what_runs_and_how_to_use_it(cluster: DevCluster) -> None:
    done = cluster.run("status.sh")
    assert done.returncode == 0
    for part, pid in cluster.pids().items():
        assert any(part in line and f"pid {pid} " in line for line in done.stdout.splitlines())
    assert f"export KUBECONFIG={cluster.kubeconfig}" in done.stdout


def test_the_users_kubeconfig_is_neither_read_nor_written(
    cluster: DevCluster, ambient: Path
) -> None:
    cluster.up()
    assert ambient.read_text() == "the user's"
    assert list(ambient.parent.iterdir()) == [ambient]


def test_killed_parts_are_started_again_and_nothing_is_forgotten(
    cluster: DevCluster, own_kubectl: Kubectl
) -> None:
    own_kubectl("create", "configmap", "kept")
    before = cluster.pids()
    killed = {"etcd", "kube-scheduler"}
    for part in killed:
        os.kill(before[part], signal.SIGKILL)
    wait_until(lambda: all(has_ended(before[part]) for part in killed), 30, "they have ended")
    told = cluster.run("status.sh")
    assert told.returncode == 1 and "ended: etcd kube-scheduler" in told.stdout

    cluster.up()

    after = cluster.pids()
    assert {part for part in PARTS if before[part] != after[part]} == killed
    assert cluster.run("status.sh").returncode == 0
    own_kubectl("get", "configmap", "kept")


def test_the_number_of_fake_nodes_follows_the_argument(
    cluster: DevCluster, own_kubectl: Kubectl
) -> None:
    for number in ("3", "1"):
        cluster.up("--fake-nodes", number)
        nodes = own_kubectl("get", "nodes", "--output=name").split()
        assert nodes == [f"node/gpu-{i}" for i in range(int(number))]


def test_another_kind_of_cluster_is_refused_while_this_one_is_there(cluster: DevCluster) -> None:
    done = cluster.run("up.sh", "--node")
    assert done.returncode == 2 and "run `make cluster-down` first" in done.stdout


def test_down_leaves_neither_processes_nor_state(cluster: DevCluster) -> None:
    cluster.down()
    assert cluster.processes() == []
    assert not cluster.state.exists()
    assert "No cluster" in cluster.down()
