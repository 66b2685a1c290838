"""Server-side apply: a real API server and the fake answer alike."""

from __future__ import annotations

import pytest

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Conflict, Invalid

from .stage import FINALIZER, OTHER_FINALIZER, Stage


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


def test_a_finalizer_cannot_be_put_on_what_is_being_deleted(stage: Stage) -> None:
    stage.kube.create(stage.job(finalizers=[OTHER_FINALIZER]))
    stage.kube.delete(Kind.JOB, stage.namespace, "sort", stage.uid(Kind.JOB, "sort"))
    with pytest.raises(Invalid):
        stage.kube.apply(stage.of_job(metadata={"finalizers": [FINALIZER]}))
    assert stage.read(Kind.JOB, "sort")["metadata"]["finalizers"] == [OTHER_FINALIZER]
