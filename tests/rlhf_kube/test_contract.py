"""Behaviour that operator and command rely on: a real API server and the fake answer alike."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_kube.errors import Conflict, FieldsConflict, NotFound
from rlhf_kube.kinds import Kind

from ..waiting import wait_until
from .fake_kube import MANAGER
from .stage import FINALIZER, SECONDS, Stage

RUNNING = {"phase": "Running", "observedGeneration": 1}


def test_its_version_is_one_that_jobs_need(stage: Stage) -> None:
    assert stage.kube.version() >= (1, 29)


def test_an_object_that_does_not_exist_is_no_error(stage: Stage) -> None:
    for kind in (Kind.JOB, Kind.POD):
        assert stage.kube.get(kind, stage.namespace, "none") is None
        assert not stage.kube.delete(kind, stage.namespace, "none")
        assert not stage.kube.delete(kind, stage.namespace, "none", "some-uid")
    assert stage.kube.list(Kind.JOB, stage.namespace) == ()


def test_a_change_of_what_does_not_exist_is_one(stage: Stage) -> None:
    with pytest.raises(NotFound, match="none"):
        stage.suspend("none")
    with pytest.raises(NotFound, match="none"):
        list(stage.kube.execute(stage.namespace, "none", "c", ["true"]))
    with pytest.raises(NotFound, match="none"):
        stage.kube.apply_status(stage.of_job("none", status={"phase": "Running"}))
    assert stage.kube.get(Kind.JOB, stage.namespace, "none") is None


# Creation


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
    first, second = (name for name in stage.names(Kind.CONFIG_MAP) if name.startswith("some-"))
    assert first != second


# Lists and watches


def test_lists_are_by_labels_and_fields_in_order_and_name_their_kind(stage: Stage) -> None:
    for name, labels in {"c": {"x": "1"}, "a": {"x": "1", "y": "2"}, "b": {"x": "2"}}.items():
        stage.kube.create(stage.config_map(name, labels=labels))
    assert stage.names(Kind.CONFIG_MAP) == ["a", "b", "c"]
    assert stage.names(Kind.CONFIG_MAP, "x=1") == ["a", "c"]
    assert stage.names(Kind.CONFIG_MAP, "x=1,y=2") == ["a"]
    assert stage.names(Kind.CONFIG_MAP, "x") == ["a", "b", "c"]
    assert stage.names(Kind.CONFIG_MAP, "x=3") == []
    assert stage.names(Kind.CONFIG_MAP, fields="metadata.name=b") == ["b"]
    everywhere = stage.kube.list(Kind.CONFIG_MAP, None, "x=2")
    assert "b" in [item["metadata"]["name"] for item in everywhere]
    assert stage.namespace in {item["metadata"]["namespace"] for item in everywhere}
    assert {(item["apiVersion"], item["kind"]) for item in everywhere} == {("v1", "ConfigMap")}


def event(stage: Stage, uid: str, type: str, reason: str, note: str) -> dict[str, Any]:
    regarding = {"apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": stage.namespace}
    return {
        **Kind.EVENT.header,
        "metadata": {"generateName": "one-", "namespace": stage.namespace},
        "regarding": {**regarding, "uid": uid},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/test",
        "reportingInstance": "test",
        "action": "Test",
        "reason": reason,
        "type": type,
        "note": note,
    }


def test_events_of_either_api_are_selected_by_their_object(stage: Stage) -> None:
    stage.kube.create(event(stage, "u-1", "Warning", "FailedMount", "no such volume"))
    stage.kube.create(event(stage, "u-1", "Normal", "Scheduled", "to a node"))
    stage.kube.create(event(stage, "u-2", "Warning", "FailedMount", "another pod's"))
    about = {"kind": "RLHFJob", "name": "sort", "namespace": stage.namespace}
    words = {"reason": "Started", "message": "now", "type": "Normal", "involvedObject": about}
    metadata = {"name": "a", "namespace": stage.namespace}
    stage.kube.create({**Kind.CORE_EVENT.header, "metadata": metadata, **words})

    def messages(fields: str) -> list[str]:
        items = stage.kube.iterate(Kind.CORE_EVENT, stage.namespace, fields=fields)
        return [item["message"] for item in items]

    assert messages("involvedObject.uid=u-1,type=Warning") == ["no such volume"]
    assert messages("involvedObject.uid=u-3") == []
    assert messages("involvedObject.kind=RLHFJob,involvedObject.name=sort") == ["now"]


def test_a_watch_reports_what_happens_after_a_snapshot(stage: Stage) -> None:
    for name in ("other", "sort"):
        stage.kube.apply(stage.job(name))
    snapshot = stage.kube.snapshot(Kind.JOB, stage.namespace)
    assert [item["kind"] for item in snapshot.items] == ["RLHFJob", "RLHFJob"]
    stage.suspend("other")
    stage.suspend("sort")
    stage.kube.delete(Kind.JOB, stage.namespace, "sort")
    fields = "metadata.name=sort"
    changes = stage.kube.watch(Kind.JOB, stage.namespace, snapshot.version, fields)
    reported = [next(changes), next(changes)]
    assert [change.is_deletion for change in reported] == [False, True]
    assert all(change.object["spec"]["suspend"] is True for change in reported)
    versions = [int(change.object["metadata"]["resourceVersion"]) for change in reported]
    assert int(snapshot.version) < versions[0] < versions[1]


# Server-side apply and merge


def test_apply_makes_what_is_missing_and_returns_the_object(stage: Stage) -> None:
    applied = stage.kube.apply({**stage.config_map(), "data": {"a": "1"}})
    assert applied == stage.read(Kind.CONFIG_MAP, "map") and applied["data"] == {"a": "1"}


def test_applying_the_same_twice_changes_nothing(stage: Stage) -> None:
    desired = {**stage.config_map(labels={"own": "1"}), "data": {"a": "1"}}
    assert stage.kube.apply(desired) == stage.kube.apply(desired)


def test_a_job_is_applied_once_and_again(stage: Stage) -> None:
    first = stage.kube.apply(stage.job())
    assert first["metadata"]["generation"] == 1 and first["status"]["phase"] == "Pending"
    assert stage.kube.apply(stage.job())["metadata"]["generation"] == 1
    changed = stage.kube.apply(stage.job(spec={"activeDeadlineSeconds": 60}))
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["uid"] == first["metadata"]["uid"]
    assert stage.read(Kind.JOB, "sort")["spec"]["activeDeadlineSeconds"] == 60


def test_apply_removes_fields_that_it_leaves_out_and_keeps_those_of_others(stage: Stage) -> None:
    stage.kube.apply({**stage.config_map(labels={"own": "1", "old": "1"}), "data": {"a": "1"}})
    stage.label(Kind.CONFIG_MAP, "map", {"theirs": "1"})
    applied = stage.kube.apply({**stage.config_map(labels={"own": "2"}), "data": {"b": "2"}})
    assert applied["metadata"]["labels"] == {"own": "2", "theirs": "1"}
    assert applied["data"] == {"b": "2"}


def test_a_dry_run_keeps_nothing(stage: Stage) -> None:
    shown = stage.kube.apply(stage.job(), dry_run=True)
    assert shown["metadata"]["name"] == "sort"
    assert stage.kube.list(Kind.JOB, stage.namespace) == ()
    stage.kube.apply(stage.job())
    assert stage.kube.apply(stage.job(spec={"suspend": True}), dry_run=True)["spec"]["suspend"]
    assert not stage.read(Kind.JOB, "sort")["spec"].get("suspend")


def test_fields_of_others_are_taken_over_only_by_force(stage: Stage) -> None:
    running = stage.job(spec={"suspend": False})
    stage.kube.apply(running)
    stage.suspend("sort")
    with pytest.raises(FieldsConflict, match="suspend") as caught:
        stage.kube.apply(running)
    assert caught.value.managers == {MANAGER}
    assert stage.read(Kind.JOB, "sort")["spec"]["suspend"] is True
    assert stage.kube.apply(running, force=True)["spec"]["suspend"] is False


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


def test_a_merge_changes_only_what_it_names(stage: Stage) -> None:
    before = stage.kube.apply(stage.job())
    after = stage.suspend("sort")
    assert {**after["spec"], "suspend": None} == {**before["spec"], "suspend": None}
    assert after["spec"]["suspend"] is True and after["metadata"]["generation"] == 2


# The status


def test_a_status_is_replaced_as_a_whole_and_nothing_else_is(stage: Stage) -> None:
    stage.kube.create(stage.job())
    before = stage.read(Kind.JOB, "sort")
    status = {**RUNNING, "gpus": 8, "attempts": 2}
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
    guard = {"resourceVersion": stage.read(Kind.JOB, "sort")["metadata"]["resourceVersion"]}
    stage.kube.apply_status(stage.of_job(metadata=guard, status=RUNNING))
    with pytest.raises(Conflict):
        stage.kube.apply_status(stage.of_job(metadata=guard, status=RUNNING))


def test_the_uid_does_not_guard_a_status(stage: Stage) -> None:
    """Who relies on it writes over another job of the same name."""
    stage.kube.create(stage.job())
    stranger = stage.of_job(metadata={"uid": "some-uid"}, status={"phase": "Running"})
    assert stage.kube.apply_status(stranger)["status"]["phase"] == "Running"


# Deletion


def test_only_the_very_object_is_deleted(stage: Stage) -> None:
    for kind, manifest in ((Kind.CONFIG_MAP, stage.config_map("a")), (Kind.JOB, stage.job("a"))):
        stage.kube.create(manifest)
        assert not stage.kube.delete(kind, stage.namespace, "a", "some-uid")
        uid = stage.uid(kind, "a")
        assert stage.kube.delete(kind, stage.namespace, "a", uid)
        assert stage.kube.get(kind, stage.namespace, "a") is None
        assert not stage.kube.delete(kind, stage.namespace, "a", uid)


def test_an_object_with_a_finalizer_stays_until_that_is_off(stage: Stage) -> None:
    stage.kube.create(stage.job())
    stage.kube.apply(stage.of_job(metadata={"finalizers": [FINALIZER]}))
    uid = stage.uid(Kind.JOB, "sort")
    for _ in range(2):
        stage.kube.delete(Kind.JOB, stage.namespace, "sort", uid)
        assert "deletionTimestamp" in stage.read(Kind.JOB, "sort")["metadata"]
    stage.kube.apply_status(stage.of_job(status=RUNNING))
    stage.kube.apply(stage.of_job(metadata={"uid": uid, "finalizers": []}))
    assert stage.kube.get(Kind.JOB, stage.namespace, "sort") is None


def test_what_an_object_owns_goes_with_it(stage: Stage) -> None:
    stage.kube.create(stage.job())
    uid = stage.uid(Kind.JOB, "sort")
    owner = {**Kind.JOB.header, "name": "sort", "uid": uid, "controller": True}
    stage.kube.apply(stage.config_map(ownerReferences=[owner]))
    stage.kube.delete(Kind.JOB, stage.namespace, "sort", uid)
    wait_until(
        lambda: stage.kube.get(Kind.CONFIG_MAP, stage.namespace, "map") is None,
        SECONDS,
        "the end of what the job owned",
    )
