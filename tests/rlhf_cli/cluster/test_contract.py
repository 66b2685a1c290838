"""What the commands count on, of the real API server and of the fake alike."""

from __future__ import annotations

import pytest

from rlhf_cli.cluster.client import Cluster
from rlhf_cli.cluster.connect import MIN_VERSION
from rlhf_cli.cluster.errors import FieldsConflict, ObjectNotFound, ObjectRefused
from rlhf_kube.kinds import Kind

from .fake_cluster import Document, FakeCluster
from .objects import submission


@pytest.fixture(params=["fake", pytest.param("remote", marks=pytest.mark.cluster)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "fake":
        return FakeCluster("team")
    found: Cluster = request.getfixturevalue("remote")
    return found


def config_map(cluster: Cluster, name: str, **labels: str) -> Document:
    meta = {"name": name, "namespace": cluster.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}}


def sort(cluster: Cluster, **spec: object) -> Document:
    return submission("sort", cluster.namespace, **spec)


def test_its_version_is_one_that_jobs_need(cluster: Cluster) -> None:
    assert cluster.version() >= MIN_VERSION


def test_what_is_not_there_is_not_found(cluster: Cluster) -> None:
    for kind in (Kind.JOB, Kind.POD):
        with pytest.raises(ObjectNotFound, match="none"):
            cluster.get(kind, cluster.namespace, "none")
        with pytest.raises(ObjectNotFound, match="none"):
            cluster.delete(kind, cluster.namespace, "none")
    with pytest.raises(ObjectNotFound, match="none"):
        cluster.merge(Kind.JOB, cluster.namespace, "none", {"spec": {"suspend": True}})
    with pytest.raises(ObjectNotFound, match="none"):
        list(cluster.execute(cluster.namespace, "none", "c", ["true"]))
    assert cluster.list(Kind.JOB, cluster.namespace).items == ()


def test_a_job_is_applied_once_and_again(cluster: Cluster) -> None:
    first = cluster.apply(Kind.JOB, sort(cluster))
    assert first["metadata"]["generation"] == 1 and first["status"]["phase"] == "Pending"
    again = cluster.apply(Kind.JOB, sort(cluster))
    assert again["metadata"]["generation"] == 1
    changed = cluster.apply(Kind.JOB, sort(cluster, activeDeadlineSeconds=60))
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["uid"] == first["metadata"]["uid"]
    assert cluster.get(Kind.JOB, cluster.namespace, "sort")["spec"]["activeDeadlineSeconds"] == 60


def test_a_dry_run_keeps_nothing(cluster: Cluster) -> None:
    told = cluster.apply(Kind.JOB, sort(cluster), dry_run=True)
    assert told["metadata"]["name"] == "sort"
    cluster.create(Kind.CONFIG_MAP, config_map(cluster, "one"), dry_run=True)
    assert cluster.list(Kind.JOB, cluster.namespace).items == ()
    with pytest.raises(ObjectNotFound):
        cluster.get(Kind.CONFIG_MAP, cluster.namespace, "one")


def test_fields_that_were_set_otherwise_are_taken_over_only_by_force(cluster: Cluster) -> None:
    cluster.apply(Kind.JOB, sort(cluster, suspend=False))
    cluster.merge(Kind.JOB, cluster.namespace, "sort", {"spec": {"suspend": True}})
    with pytest.raises(FieldsConflict, match="suspend") as caught:
        cluster.apply(Kind.JOB, sort(cluster, suspend=False))
    assert caught.value.managers == {"rlhf"}
    assert cluster.get(Kind.JOB, cluster.namespace, "sort")["spec"]["suspend"] is True
    forced = cluster.apply(Kind.JOB, sort(cluster, suspend=False), force=True)
    assert forced["spec"]["suspend"] is False


def test_a_merge_changes_only_what_it_names(cluster: Cluster) -> None:
    before = cluster.apply(Kind.JOB, sort(cluster))
    after = cluster.merge(Kind.JOB, cluster.namespace, "sort", {"spec": {"suspend": True}})
    assert {**after["spec"], "suspend": None} == {**before["spec"], "suspend": None}
    assert after["spec"]["suspend"] is True and after["metadata"]["generation"] == 2


def test_what_exists_cannot_be_created(cluster: Cluster) -> None:
    cluster.create(Kind.CONFIG_MAP, config_map(cluster, "one"))
    with pytest.raises(ObjectRefused, match="already exists"):
        cluster.create(Kind.CONFIG_MAP, config_map(cluster, "one"))


def test_lists_are_selected_by_labels_and_by_fields(cluster: Cluster) -> None:
    cluster.create(Kind.CONFIG_MAP, config_map(cluster, "one", team="a", kind="x"))
    cluster.create(Kind.CONFIG_MAP, config_map(cluster, "two", team="a"))

    def names(labels: str = "", fields: str = "") -> list[str]:
        found = cluster.list(Kind.CONFIG_MAP, cluster.namespace, labels, fields).items
        own = [each["metadata"]["name"] for each in found]
        return [name for name in own if name != "kube-root-ca.crt"]

    assert names() == ["one", "two"]
    assert names("team=a,kind=x") == ["one"]
    assert names(fields="metadata.name=two") == ["two"]
    assert names("team=b") == []
    spaces = {each["metadata"]["namespace"] for each in cluster.list(Kind.CONFIG_MAP, None).items}
    assert cluster.namespace in spaces


def test_a_listed_object_says_what_it_is(cluster: Cluster) -> None:
    cluster.apply(Kind.JOB, sort(cluster))
    (found,) = cluster.list(Kind.JOB, cluster.namespace).items
    assert (found["apiVersion"], found["kind"]) == (Kind.JOB.api_version, Kind.JOB.kind)


def test_events_are_selected_by_what_they_are_about(cluster: Cluster) -> None:
    about = {"kind": "Pod", "name": "sort-1-head-x", "namespace": cluster.namespace}
    for name, kind in (("a", "Pod"), ("b", "RLHFJob")):
        meta = {"name": name, "namespace": cluster.namespace}
        told = {"reason": "Started", "message": "now", "type": "Normal"}
        document = {"apiVersion": "v1", "kind": "Event", "metadata": meta, **told}
        cluster.create(Kind.CORE_EVENT, document | {"involvedObject": about | {"kind": kind}})
    found = cluster.list(Kind.CORE_EVENT, cluster.namespace, fields="involvedObject.kind=Pod").items
    assert [each["metadata"]["name"] for each in found] == ["a"]


def test_a_watch_tells_what_happens_after_a_list(cluster: Cluster) -> None:
    cluster.apply(Kind.JOB, submission("other", cluster.namespace))
    cluster.apply(Kind.JOB, sort(cluster))
    version = cluster.list(Kind.JOB, cluster.namespace).version
    cluster.merge(Kind.JOB, cluster.namespace, "other", {"spec": {"suspend": True}})
    cluster.merge(Kind.JOB, cluster.namespace, "sort", {"spec": {"suspend": True}})
    cluster.delete(Kind.JOB, cluster.namespace, "sort")
    changes = cluster.watch(Kind.JOB, cluster.namespace, version, "metadata.name=sort")
    told = [next(changes), next(changes)]
    assert [change.is_deletion for change in told] == [False, True]
    assert all(change.object["spec"]["suspend"] is True for change in told)
    versions = [int(change.object["metadata"]["resourceVersion"]) for change in told]
    assert int(version) < versions[0] < versions[1]


def test_a_namesake_is_not_deleted(cluster: Cluster) -> None:
    cluster.apply(Kind.JOB, sort(cluster))
    with pytest.raises(ObjectRefused, match="(?i)uid"):
        cluster.delete(Kind.JOB, cluster.namespace, "sort", uid="another")
    uid = cluster.get(Kind.JOB, cluster.namespace, "sort")["metadata"]["uid"]
    cluster.delete(Kind.JOB, cluster.namespace, "sort", uid=uid)
    with pytest.raises(ObjectNotFound):
        cluster.get(Kind.JOB, cluster.namespace, "sort")
