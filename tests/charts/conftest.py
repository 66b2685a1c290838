"""The programs that the chart's tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..cluster.programs import built
from .helm import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(built("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return built("promtool")


@pytest.fixture(scope="session")
def kubeconform() -> Path:
    return built("kubeconform")
