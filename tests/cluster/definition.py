"""The session's cluster with the CustomResourceDefinition of RLHFJobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def undefined(kubectl: Kubectl) -> Iterator[None]:
    """Meanwhile the definition is for others to make: it is as before at the end."""
    was_defined = is_defined(kubectl)
    if was_defined:
        kubectl("delete", "crd", NAME)
    yield
    kubectl("delete", "crd", NAME, "--ignore-not-found")
    if was_defined:
        define(kubectl)


def is_defined(kubectl: Kubectl) -> bool:
    """Whether the cluster has a definition of RLHFJobs."""
    return bool(kubectl("get", "crd", NAME, "--ignore-not-found", "--output=name"))


def define(kubectl: Kubectl) -> None:
    """Make a cluster know RLHFJobs."""
    kubectl("apply", f"--filename={DEFINITION}")
    wait_until(lambda: is_established(kubectl), 60, "the API server serves RLHFJobs")


def is_established(kubectl: Kubectl) -> bool:
    """Whether it does; `kubectl wait` fails on a definition that has no conditions yet."""
    status = kubectl.get("default", "customresourcedefinitions", NAME).get("status") or {}
    conditions = status.get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
