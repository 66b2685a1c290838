"""The programs that the chart's tests run, and kinds that its objects are of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ..cluster.kubectl import Kubectl
from ..cluster.programs import built
from ..waiting import wait_until
from .helm import Helm

MONITORING = ("podmonitors", "servicemonitors", "prometheusrules")


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

    def established() -> bool:  # `kubectl wait` fails where there is no condition at all yet
        kinds = json.loads(kubectl("get", "--output=json", *files))["items"]
        return all(_is_established(kind) for kind in kinds)

    wait_until(established, 60, "the kinds of the Prometheus operator")
    yield
    kubectl("delete", *files)


def _is_established(kind: Mapping[str, Any]) -> bool:
    conditions = kind.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
