"""The cluster of a test session: the one that RLHF_TEST_KUBECONFIG names, or one of its own.

Its own is a control plane with KubeRay, Kueue and fake GPU nodes, on free ports: started by the
first test that asks for `kubeconfig` and stopped after the last. Where the machine lacks what it
needs, these tests are skipped; where it lacks only Kueue, those of Kueue. With CI=true they fail.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from ..heavy_starts import Heavy, count_start
from .devcluster import DevCluster
from .kubectl import Kubectl

STATES = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
OWN = STATES / "rlhf-operator" / "test-clusters"
"""A folder per test process, named by its pid, so that what a killed one left can be found."""


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """Where the administrator's kubeconfig of the session's cluster is."""
    named = os.environ.get("RLHF_TEST_KUBECONFIG")
    if not named:
        options = possible(DevCluster(OWN), "--kueue")
        with _running("session", options, {}, shared=True) as cluster:
            yield cluster.kubeconfig
    elif Path(named).is_file():
        yield Path(named)
    else:
        pytest.fail(f"RLHF_TEST_KUBECONFIG: got {named}, which is no file: name a kubeconfig")


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """kubectl at the session's cluster: the cluster's own, or else the one on the path."""
    own = kubeconfig.parent / "bin" / "kubectl"
    program = own if own.exists() else shutil.which("kubectl")
    if program is None:
        skip_or_fail("kubectl is not on the path")
    return Kubectl(Path(program), kubeconfig, tmp_path_factory.mktemp("kubectl"))


@contextmanager
def new_namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace with a name of its own, deleted at the end."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own."""
    with new_namespace(kubectl) as name:
        yield name


@contextmanager
def own_cluster(name: str, *arguments: str, **environment: str) -> Iterator[DevCluster]:
    """A cluster of a test's own, stopped at the end."""
    with _running(name, arguments, environment, shared=False) as cluster:
        yield cluster


@contextmanager
def _running(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], *, shared: bool
) -> Iterator[DevCluster]:
    stop_abandoned()
    folder = OWN / str(os.getpid())
    cluster = DevCluster(folder / name, environment)
    if lacking := cluster.lacks(*arguments):
        skip_or_fail(lacking)
    count_start(Heavy.CONTROL_PLANE, shared=shared)
    try:
        cluster.up(*arguments)
        yield cluster
    finally:
        cluster.down()
        with suppress(OSError):  # another cluster is still there
            folder.rmdir()
            OWN.rmdir()


def possible(cluster: DevCluster, option: str) -> tuple[str, ...]:
    """An option for up.sh where the machine has what it needs; tests of it say what is missing."""
    return () if cluster.lacks(option) else (option,)


def stop_abandoned() -> None:
    """Stop what test processes left that were killed."""
    for folder in OWN.glob("*"):
        if Path("/proc", folder.name).exists():
            continue
        for state in folder.glob("*"):
            DevCluster(state).run("down.sh")
        with suppress(OSError):
            folder.rmdir()


def skip_or_fail(reason: str) -> NoReturn:
    """End the test: skipped where a person works, failed in CI, which must have what tests need."""
    if in_ci():
        pytest.fail(reason)
    pytest.skip(reason)


def in_ci() -> bool:
    """Whether this is CI, as all of its systems say it."""
    return os.environ.get("CI", "") not in ("", "0", "false")
