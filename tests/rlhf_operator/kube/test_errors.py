"""Refusals of a real API server, and one that does not answer, as errors of the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Forbidden, Invalid, Unreachable
from rlhf_operator.clients.kube.remote import RemoteKube

from ...cluster.kubectl import Kubectl
from ...free_port import free_port
from ...kubeconfigs import config, written
from ...waiting import wait_until
from ..cluster import SECONDS
from .stage import RealStage

pytestmark = pytest.mark.cluster


def test_what_is_not_allowed_is_forbidden(real: RealStage, defined: Kubectl) -> None:
    nobody = RemoteKube.connect(defined.kubeconfig, 1)
    nobody.server.headers["Impersonate-User"] = "nobody"
    with pytest.raises(Forbidden, match="nobody"):
        nobody.get(Kind.JOB, real.namespace, "sort")
    with pytest.raises(Forbidden):
        nobody.create(real.config_map())
    with pytest.raises(Forbidden):
        nobody.apply(real.config_map())
    with pytest.raises(Forbidden):
        nobody.delete(Kind.CONFIG_MAP, real.namespace, "map", "some-uid")
    nobody.close()


def test_a_quota_forbids(real: RealStage) -> None:
    real.kubectl(
        "create", "quota", "none", f"--namespace={real.namespace}", "--hard=count/secrets=0"
    )
    secret = {**real.config_map("one"), "kind": "Secret"}

    def refused() -> bool:
        """A quota is in force as soon as its controller has counted."""
        try:
            return not real.kube.create(secret)
        except Forbidden as error:
            return "exceeded quota" in str(error)

    wait_until(refused, SECONDS, "a refusal")


def test_what_the_definition_is_against_is_invalid(real: RealStage) -> None:
    wrong = real.job()
    wrong["spec"] = {**wrong["spec"], "schedule": {"steps": -1}}
    with pytest.raises(Invalid, match="steps"):
        real.kube.create(wrong)
    real.kube.create(real.job())
    with pytest.raises(Invalid, match="gpus"):
        real.kube.apply_status(real.of_job(status={"gpus": -1}))


def test_who_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    nowhere = written(tmp_path / "config", config(f"https://127.0.0.1:{free_port()}"))
    away = RemoteKube.connect(nowhere, 1)
    with pytest.raises(Unreachable, match="GET /version"):
        away.ping()
    away.close()


def test_a_field_that_a_kind_does_not_have_is_an_error(real: RealStage) -> None:
    """The fake knows no kinds' fields."""
    with pytest.raises(Invalid, match='unknown field "spec.newest"'):
        real.kube.create(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"name": "one", "namespace": real.namespace},
                "spec": {"newest": {}},
            }
        )
