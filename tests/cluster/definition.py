"""The session's cluster with the CustomResourceDefinition of RLHFJobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..waiting import wait_until
from .kubectl import Kubectl

DEFINITION = Path(__file__).parents[2] / "crds" / "rlhf-operator.dev_rlhfjobs.yaml"
NAME = "rlhfjobs.rlhf-operator.dev"


@pytest.fixture(scope="session")
def defined(kubectl: Kubectl) -> Iterator[Kubectl]:
    """The session's cluster, which knows RLHFJobs."""
    define(kubectl)
    yield kubectl
    kubectl("delete", f"--filename={DEFINITION}")


def define(kubectl: Kubectl) -> None:
    """Make a cluster know RLHFJobs."""
    kubectl("apply", f"--filename={DEFINITION}")
    wait_until(lambda: _is_established(kubectl), 60, "the API server serves RLHFJobs")


def _is_established(kubectl: Kubectl) -> bool:
    """Whether it does; `kubectl wait` fails on a definition that has no conditions yet."""
    status = kubectl.get("default", "customresourcedefinitions", NAME).get("status") or {}
    conditions = status.get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
