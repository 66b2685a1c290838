"""What the operator may expect of Kubernetes, asked of a real API server and of the fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.remote import RemoteKube

from ...cluster.kubectl import Kubectl
from ..fake_kube import FakeKube
from .stage import FakeStage, RealStage, Stage


@pytest.fixture
def real(defined: Kubectl, namespace: str) -> Iterator[RealStage]:
    kube = RemoteKube.connect(defined.kubeconfig, 2)
    yield RealStage(kube, namespace, defined)
    for job in kube.list(Kind.JOB, namespace):  # else their definition could not be deleted
        words = (f"--namespace={namespace}", "rlhfjob", job["metadata"]["name"])
        defined("patch", *words, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    kube.close()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "fake":
        return FakeStage(FakeKube(), "team")
    made: Stage = request.getfixturevalue("real")
    return made
