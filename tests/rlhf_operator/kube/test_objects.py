"""Objects that are made, read, listed and deleted: a real API server and the fake answer alike."""

from __future__ import annotations

import pytest

from rlhf_kube import api_server
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.remote import RemoteKube

from ...waiting import wait_until
from ..cluster import SECONDS
from .stage import FINALIZER, RealStage, Stage


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


@pytest.mark.cluster
def test_long_lists_come_in_pages(real: RealStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAGE_SIZE", 2)
    names = [f"map-{number}" for number in range(5)]
    for name in names:
        real.kube.create(real.config_map(name, labels={"paged": "yes"}))
    asked: list[str] = []
    assert isinstance(real.kube, RemoteKube)
    real.kube.on_request = asked.append
    assert real.names(Kind.CONFIG_MAP, "paged=yes") == names
    assert asked == ["GET"] * 3


def test_only_the_very_object_is_deleted(stage: Stage) -> None:
    stage.kube.create(stage.config_map())
    assert not stage.kube.delete(Kind.CONFIG_MAP, stage.namespace, "map", "some-uid")
    uid = stage.uid(Kind.CONFIG_MAP, "map")
    assert stage.kube.delete(Kind.CONFIG_MAP, stage.namespace, "map", uid)
    assert stage.kube.get(Kind.CONFIG_MAP, stage.namespace, "map") is None
    assert not stage.kube.delete(Kind.CONFIG_MAP, stage.namespace, "map", uid)


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
