"""Refusals of a real API server as errors of the client, and long lists."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rlhf_kube import client
from rlhf_kube.client import KubeClient
from rlhf_kube.errors import Forbidden, Invalid, NotAdmitted, NotFound, NotInstalled
from rlhf_kube.kinds import Kind

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .stage import SECONDS, Stage, admin

pytestmark = pytest.mark.cluster


def test_what_is_not_allowed_is_forbidden(real: Stage, defined: Kubectl) -> None:
    with admin(defined) as nobody:
        nobody.server.headers["Impersonate-User"] = "nobody"
        with pytest.raises(Forbidden, match="you may not read .*nobody.*ask for a role"):
            nobody.get(Kind.JOB, real.namespace, "sort")
        with pytest.raises(Forbidden):
            nobody.create(real.config_map())
        with pytest.raises(Forbidden):
            nobody.apply(real.config_map())
        with pytest.raises(Forbidden):
            nobody.delete(Kind.CONFIG_MAP, real.namespace, "map", "some-uid")


def test_a_quota_does_not_admit(real: Stage) -> None:
    assert real.kubectl is not None
    real.kubectl(
        "create", "quota", "none", f"--namespace={real.namespace}", "--hard=count/secrets=0"
    )
    secret = {**real.config_map("one"), "kind": "Secret"}

    def is_refused() -> bool:
        """A quota is in force as soon as its controller has counted."""
        try:
            return not real.kube.create(secret)
        except NotAdmitted as error:
            return "exceeded quota" in str(error)

    wait_until(is_refused, SECONDS, "a refusal")


def test_what_the_definition_forbids_is_invalid(real: Stage) -> None:
    wrong = real.job(spec={"schedule": {"steps": -1}})
    with pytest.raises(Invalid, match="steps"):
        real.kube.create(wrong)
    real.kube.create(real.job())
    with pytest.raises(Invalid, match="gpus"):
        real.kube.apply_status(real.of_job(status={"gpus": -1}))


def test_a_field_that_a_kind_does_not_have_is_an_error(real: Stage) -> None:
    """The fake knows no kinds' fields."""
    metadata = {"name": "one", "namespace": real.namespace}
    with pytest.raises(Invalid, match='unknown field "spec.newest"'):
        real.kube.create({**Kind.CLUSTER.header, "metadata": metadata, "spec": {"newest": {}}})


def test_a_namespace_that_does_not_exist_is_not_found(real: Stage) -> None:
    job = real.job()
    job["metadata"]["namespace"] = "nowhere"
    for write in (real.kube.create, real.kube.apply):
        with pytest.raises(NotFound, match="kubectl create namespace nowhere"):
            write(job)


def test_a_kind_that_is_not_served_is_not_installed(
    real: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kind.CLUSTER, "plural", "dreams")
    with pytest.raises(NotInstalled, match=r"no dreams\.ray\.io"):
        real.kube.list(Kind.CLUSTER, real.namespace)
    # KubeRay may go before the jobs: their clusters went with it, and jobs must be deletable.
    assert real.kube.get(Kind.CLUSTER, real.namespace, "one") is None
    assert not real.kube.delete(Kind.CLUSTER, real.namespace, "one")
    monkeypatch.setattr(Kind.JOB, "plural", "dreams")
    with pytest.raises(NotInstalled, match="does not know RLHFJobs"):
        real.kube.get(Kind.JOB, real.namespace, "one")


def test_long_lists_come_in_pages(real: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    names = [f"map-{number}" for number in range(5)]
    for name in names:
        real.kube.create(real.config_map(name, labels={"paged": "yes"}))
    asked: list[str] = []
    assert isinstance(real.kube, KubeClient)
    real.kube.on_request = asked.append
    assert real.names(Kind.CONFIG_MAP, "paged=yes") == names
    assert asked == ["GET"] * 3


def event(stage: Stage, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": stage.namespace, "labels": {"paged": "yes"}}
    regarding = {"kind": "ConfigMap", "namespace": stage.namespace, "name": "map"}
    return {
        **Kind.EVENT.header,
        "metadata": metadata,
        "regarding": regarding,
        "eventTime": "2026-01-02T03:04:05.000000Z",
        "reason": "Paged",
        "action": "Page",
        "type": "Normal",
        "reportingController": "test",
        "reportingInstance": "test",
    }


def compact(state: Path) -> None:
    """Make etcd forget all versions but the current one, as it does every five minutes."""
    port = int((state / "port").read_text()) + 1
    login = ssl.create_default_context(cafile=state / "pki" / "ca.crt")
    login.load_cert_chain(state / "pki" / "admin.crt", state / "pki" / "admin.key")

    def ask(call: str, body: dict[str, Any]) -> dict[str, Any]:
        address = f"https://127.0.0.1:{port}/v3/kv/{call}"
        request = urllib.request.Request(address, json.dumps(body).encode())
        with urllib.request.urlopen(request, context=login) as answer:
            return dict(json.load(answer))

    key = base64.b64encode(b"/").decode()
    ask("compaction", {"revision": ask("range", {"key": key})["header"]["revision"]})


def test_a_list_goes_on_when_its_version_has_expired(
    real: Stage, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE_SIZE", 2)
    # The API server keeps no cache of events: each page comes from etcd.
    for number in range(5):
        real.kube.create(event(real, f"event-{number}"))
    assert isinstance(real.kube, KubeClient)
    found = real.kube.iterate(Kind.EVENT, real.namespace, "paged=yes")
    names = [next(found)["metadata"]["name"]]
    real.kube.delete(Kind.EVENT, real.namespace, "event-3")
    real.kube.create(event(real, "event-5"))
    compact(kubeconfig.parent)
    names += [other["metadata"]["name"] for other in found]
    assert names == ["event-0", "event-1", "event-2", "event-4", "event-5"]
