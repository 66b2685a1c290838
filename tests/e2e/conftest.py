"""What end-to-end tests share: a real node with this project's images, an operator, and volumes.

The operator is the one that the README's walk installs, which goes on beside the other tests. The
node's cluster is this session's own, or the one that RLHF_TEST_KUBECONFIG names. They run only when
`-m e2e` chooses them: they need root, and the images.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..charts.helm import Helm
from ..cluster.devcluster import SCRIPTS, DevCluster, output_of
from ..cluster.kubectl import Kubectl
from ..cluster.programs import built
from ..cluster.session import own_cluster
from ..heavy_starts import Heavy, count_start
from .installed import InstalledOperator, place_for_release
from .kubectl_pods import IMAGE
from .volume import CheckpointVolume
from .walkthrough import ROOT, Walkthrough, walk

STARTED_PODS = re.compile(r"^kubelet_started_pods_total (\d+)$", re.MULTILINE)
FETCHED = ROOT / "rlhf-runs" / "from-kubernetes"
"""Where the README's last line puts the model."""
INSTALL_SECONDS = 900.0
"""How long the README takes to its job, where images have to be built anew."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless they were asked for; those beside the README's walk come last.

    The walk starts the node as the README says it, and then that pretends to have no GPUs.
    """
    if "e2e" in config.option.markexpr:
        items.sort(key=lambda item: "walkthrough" in getattr(item, "fixturenames", ()))
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


@pytest.fixture(scope="session", autouse=True)
def counted_pods(kubectl: Kubectl) -> Iterator[None]:
    """Count the pods that the node's kubelet starts in this session."""
    before = started_pods(kubectl)
    yield
    count_start(Heavy.POD, started_pods(kubectl) - before)


def started_pods(kubectl: Kubectl) -> int:
    """Pods that kubelets have started since they run themselves."""
    total = 0
    for node in kubectl("get", "nodes", "--output=name").split():
        metrics = kubectl(
            "get", "--raw", f"/api/v1/{node.replace('node/', 'nodes/')}/proxy/metrics"
        )
        numbers = STARTED_PODS.findall(metrics)
        assert numbers, f"{node} does not say how many pods it has started"
        total += sum(map(int, numbers))
    return total


@pytest.fixture(scope="session")
def node(node_cluster: DevCluster, kubectl: Kubectl) -> str:
    """The real node's name; its containerd has an image of kubectl."""
    make = [str(SCRIPTS / "node" / "one-file-image.py"), str(kubectl.program.resolve()), IMAGE]
    image = subprocess.run(make, capture_output=True, check=True).stdout
    socket = str(node_cluster.state / "containerd.sock")
    load = ["ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", "-"]
    subprocess.run(load, input=image, stdout=subprocess.DEVNULL, check=True)
    return kubectl("get", "nodes", "--selector=type!=kwok", "--output=name").strip()


@pytest.fixture(scope="session")
def helm(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm at the node's cluster."""
    return Helm(built("helm"), tmp_path_factory.mktemp("helm"), kubectl.kubeconfig)


@pytest.fixture(scope="session")
def walkthrough(
    node_cluster: DevCluster,
    kubectl: Kubectl,
    helm: Helm,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Walkthrough]:
    """The README's walk, begun; nothing of an earlier one is there, and nothing of it stays."""
    shutil.rmtree(FETCHED, ignore_errors=True)
    with place_for_release(helm, kubectl):
        with walk(node_cluster, tmp_path_factory.mktemp("walk") / "log") as begun:
            yield begun
        shutil.rmtree(FETCHED, ignore_errors=True)
        flags = ("--namespace=default", "--ignore-not-found", "--timeout=180s")
        kubectl("delete", "rlhfjob/sort-grpo", *flags)
        kubectl("delete", "persistentvolumeclaim/checkpoints", *flags)


@pytest.fixture(scope="session")
def operator(walkthrough: Walkthrough, helm: Helm) -> InstalledOperator:
    """The operator, once the README has installed it, and tested it, and gives it a job."""
    walkthrough.wait_for("kubectl apply --filename examples/01-sort-grpo.yaml", INSTALL_SECONDS)
    return InstalledOperator(helm)


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


@pytest.fixture
def namespace_of_jobs(
    operator: InstalledOperator,
    kubectl: Kubectl,
    restricted_namespace: str,
    checkpoints: CheckpointVolume,
) -> Iterator[str]:
    """A namespace with a volume. Its jobs and their pods go with it, before the volume goes."""
    yield restricted_namespace
    kubectl("delete", "namespace", restricted_namespace, "--timeout=120s")
