"""A namespace of the real API server, and of the fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlhf_kube.kinds import Kind

from ..cluster.kubectl import Kubectl
from .stage import Stage, admin


@pytest.fixture
def real(defined: Kubectl, namespace: str) -> Iterator[Stage]:
    with admin(defined, namespace) as client:
        yield Stage(client, defined)
        for job in client.list(Kind.JOB, namespace):  # else their definition could not be deleted
            words = (f"--namespace={namespace}", "rlhfjob", job["metadata"]["name"])
            defined("patch", *words, "--type=merge", '--patch={"metadata":{"finalizers":null}}')


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "fake":
        return Stage()
    made: Stage = request.getfixturevalue("real")
    return made
