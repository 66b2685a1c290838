"""The programs that the chart's tests run, and kinds that its objects are of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster.kubectl import Kubectl
from ..cluster.programs import built
from .helm import Helm

MONITORING = ("podmonitors", "prometheusrules")


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(built("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return built("promtool")


@pytest.fixture(scope="session")
def kubeconform() -> Path:
    return built("kubeconform")


@pytest.fixture(scope="session")
def monitoring_kinds(kubectl: Kubectl) -> Iterator[None]:
    """The kinds of the Prometheus operator, without it."""
    folder = built("monitoring-crds")
    files = [f"--filename={folder}/monitoring.coreos.com_{kind}.yaml" for kind in MONITORING]
    kubectl("apply", "--server-side", *files)
    kubectl("wait", "--for=condition=Established", *files, "--timeout=60s")
    yield
    kubectl("delete", *files)
