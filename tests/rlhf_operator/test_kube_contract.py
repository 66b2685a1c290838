"""What the operator may expect of Kubernetes: a real API server and the fake answer alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rlhf_operator.kube import official
from rlhf_operator.kube.official import OfficialKube
from rlhf_operator.kube.protocol import (
    Conflict,
    Forbidden,
    Invalid,
    Kind,
    Kube,
    Manifest,
    Unreachable,
)

from ..cluster.kubectl import Kubectl
from ..free_port import free_port
from ..waiting import wait_until
from .cluster import SECONDS, small
from .fake_kube import FakeKube

FINALIZER = "rlhf-operator.dev/cluster"
OTHER_FINALIZER = "example.com/other"


class Stage:
    """A namespace of a Kubernetes, and what somebody else does in it."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    def job(self, name: str = "sort", **metadata: Any) -> dict[str, Any]:
        document = small(name)
        return {**document, "metadata": {"name": name, "namespace": self.namespace, **metadata}}

    def config_map(self, name: str = "map", **metadata: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.namespace, **metadata},
        }

    def of_job(self, name: str = "sort", **fields: Any) -> dict[str, Any]:
        """What the operator says of a job: this and nothing else."""
        metadata = {"name": name, "namespace": self.namespace, **fields.pop("metadata", {})}
        kind = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob"}
        return {**kind, "metadata": metadata, **fields}

    def read(self, kind: Kind, name: str) -> Manifest:
        found = self.kube.get(kind, self.namespace, name)
        assert found is not None, f"no {kind} {name}"
        return found

    def uid(self, kind: Kind, name: str) -> str:
        return str(self.read(kind, name)["metadata"]["uid"])

    def names(self, kind: Kind, selector: str = "") -> list[str]:
        found = self.kube.list(kind, self.namespace, selector)
        return [each["metadata"]["name"] for each in found]

    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        """Somebody else labels an object."""
        raise NotImplementedError


class FakeStage(Stage):
    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        assert isinstance(self.kube, FakeKube)

        def change(found: dict[str, Any]) -> None:
            found["metadata"]["labels"] = {**found["metadata"].get("labels", {}), **labels}

        self.kube.edit(kind, self.namespace, name, change)


class RealStage(Stage):
    def __init__(self, kube: Kube, namespace: str, kubectl: Kubectl) -> None:
        super().__init__(kube, namespace)
        self.kubectl = kubectl

    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        pairs = [f"{name}={value}" for name, value in labels.items()]
        place = f"--namespace={self.namespace}"
        self.kubectl("label", place, kind.value.plural, name, *pairs)


@pytest.fixture
def real(defined: Kubectl, namespace: str) -> Iterator[RealStage]:
    kube = OfficialKube.connect(defined.kubeconfig, 2)
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


def test_it_answers(stage: Stage) -> None:
    stage.kube.ping()


def test_what_is_not_there_is_no_error(stage: Stage) -> None:
    assert stage.kube.get(Kind.JOB, stage.namespace, "none") is None
    assert stage.kube.list(Kind.JOB, stage.namespace) == ()
    stage.kube.delete(Kind.JOB, stage.namespace, "none", "some-uid")


def test_an_object_is_made_once(stage: Stage) -> None:
    assert stage.kube.create(stage.config_map(labels={"first": "yes"}))
    made = stage.read(Kind.CONFIG_MAP, "map")
    assert not stage.kube.create(stage.config_map(labels={"second": "yes"}))
    assert stage.read(Kind.CONFIG_MAP, "map") == made
    assert made["metadata"]["labels"] == {"first": "yes"}
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()


def test_a_name_can_be_left_to_kubernetes(stage: Stage) -> None:
    unnamed = stage.config_map()
    unnamed["metadata"] = {"generateName": "some-", "namespace": stage.namespace}
    assert stage.kube.create(unnamed) and stage.kube.create(unnamed)
    first, second = (each for each in stage.names(Kind.CONFIG_MAP) if each.startswith("some-"))
    assert first != second


def test_lists_are_by_labels_in_order_and_name_their_kind(stage: Stage) -> None:
    for name, labels in {"c": {"x": "1"}, "a": {"x": "1", "y": "2"}, "b": {"x": "2"}}.items():
        stage.kube.create(stage.config_map(name, labels=labels))
    assert stage.names(Kind.CONFIG_MAP, "x=1") == ["a", "c"]
    assert stage.names(Kind.CONFIG_MAP, "x=1,y=2") == ["a"]
    assert stage.names(Kind.CONFIG_MAP, "x") == ["a", "b", "c"]
    assert stage.names(Kind.CONFIG_MAP, "x=3") == []
    everywhere = stage.kube.list(Kind.CONFIG_MAP, None, "x=2")
    assert "b" in [each["metadata"]["name"] for each in everywhere]
    assert {(each["apiVersion"], each["kind"]) for each in everywhere} == {("v1", "ConfigMap")}


def test_apply_makes_what_is_not_there_and_says_what_it_became(stage: Stage) -> None:
    applied = stage.kube.apply({**stage.config_map(), "data": {"a": "1"}})
    assert applied == stage.read(Kind.CONFIG_MAP, "map") and applied["data"] == {"a": "1"}


def test_applying_the_same_twice_changes_nothing(stage: Stage) -> None:
    wanted = {**stage.config_map(labels={"own": "1"}), "data": {"a": "1"}}
    first = stage.kube.apply(wanted)
    assert stage.kube.apply(wanted) == first


def test_apply_takes_away_what_it_no_longer_says_and_leaves_others_words(stage: Stage) -> None:
    stage.kube.apply({**stage.config_map(labels={"own": "1", "old": "1"}), "data": {"a": "1"}})
    stage.label(Kind.CONFIG_MAP, "map", {"theirs": "1"})
    applied = stage.kube.apply({**stage.config_map(labels={"own": "2"}), "data": {"b": "2"}})
    assert applied["metadata"]["labels"] == {"own": "2", "theirs": "1"}
    assert applied["data"] == {"b": "2"}


def test_an_object_of_another_uid_is_not_applied_to(stage: Stage) -> None:
    with pytest.raises(Conflict):
        stage.kube.apply(stage.config_map(uid="some-uid"))
    stage.kube.create(stage.config_map())
    stage.kube.create(stage.job())
    with pytest.raises(Conflict):
        stage.kube.apply(stage.config_map(uid="some-uid", labels={"own": "1"}))
    with pytest.raises(Conflict):
        stage.kube.apply(stage.of_job(metadata={"uid": "some-uid", "finalizers": [FINALIZER]}))
    uid = stage.uid(Kind.CONFIG_MAP, "map")
    assert stage.kube.apply(stage.config_map(uid=uid, labels={"own": "1"}))


def test_an_object_that_has_changed_is_not_applied_to(stage: Stage) -> None:
    stage.kube.create(stage.config_map())
    version = stage.read(Kind.CONFIG_MAP, "map")["metadata"]["resourceVersion"]
    stage.label(Kind.CONFIG_MAP, "map", {"theirs": "1"})
    with pytest.raises(Conflict):
        stage.kube.apply(stage.config_map(resourceVersion=version, labels={"own": "1"}))


def test_a_finalizer_goes_on_and_off_beside_others(stage: Stage) -> None:
    stage.kube.create(stage.job(finalizers=[OTHER_FINALIZER]))
    before = stage.read(Kind.JOB, "sort")
    on = stage.kube.apply(stage.of_job(metadata={"finalizers": [FINALIZER]}))
    assert sorted(on["metadata"]["finalizers"]) == [OTHER_FINALIZER, FINALIZER]
    off = stage.kube.apply(stage.of_job(metadata={"finalizers": []}))
    assert off["metadata"]["finalizers"] == [OTHER_FINALIZER]
    assert off["spec"] == before["spec"]
    assert off["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_status_is_replaced_as_a_whole_and_nothing_else_is(stage: Stage) -> None:
    stage.kube.create(stage.job())
    before = stage.read(Kind.JOB, "sort")
    status = {"phase": "Running", "observedGeneration": 1, "gpus": 8, "attempts": 2}
    first = stage.kube.apply_status(stage.of_job(status=status))
    assert first["status"].items() >= status.items()
    assert first["metadata"]["generation"] == before["metadata"]["generation"]
    assert first["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    less = {"phase": "Suspended", "observedGeneration": 1}
    second = stage.kube.apply_status(stage.of_job(status=less, spec={"suspend": True}))
    assert second["status"]["phase"] == "Suspended"
    assert not second["status"].get("gpus") and not second["status"].get("attempts")
    assert second["spec"] == before["spec"]
    assert stage.kube.apply_status(stage.of_job(status=less)) == second


def test_a_status_is_written_only_over_the_version_that_was_read(stage: Stage) -> None:
    stage.kube.create(stage.job())
    status = {"phase": "Running", "observedGeneration": 1}
    guard = {"resourceVersion": stage.read(Kind.JOB, "sort")["metadata"]["resourceVersion"]}
    stage.kube.apply_status(stage.of_job(metadata=guard, status=status))
    with pytest.raises(Conflict):
        stage.kube.apply_status(stage.of_job(metadata=guard, status=status))


def test_the_uid_does_not_guard_a_status(stage: Stage) -> None:
    """Who relies on it writes over another job of the same name."""
    stage.kube.create(stage.job())
    stranger = stage.of_job(metadata={"uid": "some-uid"}, status={"phase": "Running"})
    assert stage.kube.apply_status(stranger)["status"]["phase"] == "Running"


def test_the_status_of_what_is_gone_is_not_written(stage: Stage) -> None:
    with pytest.raises(Conflict):
        stage.kube.apply_status(stage.of_job("none", status={"phase": "Running"}))
    assert stage.kube.get(Kind.JOB, stage.namespace, "none") is None


def test_only_the_very_object_is_deleted(stage: Stage) -> None:
    stage.kube.create(stage.config_map())
    stage.kube.delete(Kind.CONFIG_MAP, stage.namespace, "map", "some-uid")
    uid = stage.uid(Kind.CONFIG_MAP, "map")
    stage.kube.delete(Kind.CONFIG_MAP, stage.namespace, "map", uid)
    assert stage.kube.get(Kind.CONFIG_MAP, stage.namespace, "map") is None
    stage.kube.delete(Kind.CONFIG_MAP, stage.namespace, "map", uid)


def test_an_object_with_a_finalizer_stays_until_that_is_off(stage: Stage) -> None:
    stage.kube.create(stage.job())
    stage.kube.apply(stage.of_job(metadata={"finalizers": [FINALIZER]}))
    uid = stage.uid(Kind.JOB, "sort")
    for _ in range(2):
        stage.kube.delete(Kind.JOB, stage.namespace, "sort", uid)
        assert "deletionTimestamp" in stage.read(Kind.JOB, "sort")["metadata"]
    status = {"phase": "Running", "observedGeneration": 1}
    stage.kube.apply_status(stage.of_job(status=status))
    stage.kube.apply(stage.of_job(metadata={"uid": uid, "finalizers": []}))
    assert stage.kube.get(Kind.JOB, stage.namespace, "sort") is None


def test_a_finalizer_cannot_be_put_on_what_is_being_deleted(stage: Stage) -> None:
    stage.kube.create(stage.job(finalizers=[OTHER_FINALIZER]))
    stage.kube.delete(Kind.JOB, stage.namespace, "sort", stage.uid(Kind.JOB, "sort"))
    with pytest.raises(Invalid):
        stage.kube.apply(stage.of_job(metadata={"finalizers": [FINALIZER]}))
    assert stage.read(Kind.JOB, "sort")["metadata"]["finalizers"] == [OTHER_FINALIZER]


def test_what_an_object_owns_goes_with_it(stage: Stage) -> None:
    stage.kube.create(stage.job())
    uid = stage.uid(Kind.JOB, "sort")
    job = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob", "name": "sort"}
    owner = {**job, "uid": uid, "controller": True}
    stage.kube.apply(stage.config_map(ownerReferences=[owner]))
    stage.kube.delete(Kind.JOB, stage.namespace, "sort", uid)
    wait_until(
        lambda: stage.kube.get(Kind.CONFIG_MAP, stage.namespace, "map") is None,
        SECONDS,
        "the end of what the job owned",
    )


@pytest.mark.cluster
def test_long_lists_come_in_pages(real: RealStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "PAGE_SIZE", 2)
    names = [f"map-{number}" for number in range(5)]
    for name in names:
        real.kube.create(real.config_map(name, labels={"paged": "yes"}))
    asked: list[str] = []
    assert isinstance(real.kube, OfficialKube)
    real.kube.asked = asked.append
    assert real.names(Kind.CONFIG_MAP, "paged=yes") == names
    assert asked == ["GET"] * 3


@pytest.mark.cluster
def test_what_is_not_allowed_is_forbidden(real: RealStage, defined: Kubectl) -> None:
    nobody = OfficialKube.connect(defined.kubeconfig, 1)
    nobody.api.set_default_header("Impersonate-User", "nobody")
    with pytest.raises(Forbidden, match="nobody"):
        nobody.get(Kind.JOB, real.namespace, "sort")
    with pytest.raises(Forbidden):
        nobody.create(real.config_map())
    with pytest.raises(Forbidden):
        nobody.apply(real.config_map())
    with pytest.raises(Forbidden):
        nobody.delete(Kind.CONFIG_MAP, real.namespace, "map", "some-uid")
    nobody.close()


@pytest.mark.cluster
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


@pytest.mark.cluster
def test_what_the_definition_is_against_is_invalid(real: RealStage) -> None:
    wrong = real.job()
    wrong["spec"] = {**wrong["spec"], "schedule": {"steps": -1}}
    with pytest.raises(Invalid, match="steps"):
        real.kube.create(wrong)
    real.kube.create(real.job())
    with pytest.raises(Invalid, match="phase"):
        real.kube.apply_status(real.of_job(status={"phase": "Dreaming"}))


@pytest.mark.cluster
def test_who_does_not_answer_is_unreachable(real: RealStage, defined: Kubectl) -> None:
    away = OfficialKube.connect(defined.kubeconfig, 1)
    away.api.configuration.host = f"https://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match="GET /version"):
        away.ping()
    away.close()
