"""What is remembered of Kubernetes' objects, and what is forgotten."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.errors import NotInstalled, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.cached_kube import CachedKube

from ..rlhf_kube.fake_kube import FakeKube
from .world import NAMESPACE, manifest

SORT = (Kind.JOB, NAMESPACE, "sort")
LABEL = "rlhf-operator.dev/job=sort"


@pytest.fixture
def kube() -> FakeKube:
    kube = FakeKube()
    kube.create(manifest())
    return kube


def pod(kube: FakeKube, name: str = "one") -> dict[str, Any]:
    labels = {"rlhf-operator.dev/job": "sort"}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {}})
    return copy.deepcopy(kube.objects[Kind.POD, NAMESPACE, name])


def of_job(kube: FakeKube, **status: Any) -> dict[str, Any]:
    metadata = kube.objects[SORT]["metadata"]
    own = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    head = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob"}
    return {**head, "metadata": own, "status": status}


def test_news_that_are_older_than_what_is_known_change_nothing(kube: FakeKube) -> None:
    cached = CachedKube(kube)
    old = copy.deepcopy(kube.objects[SORT])
    cached.apply_status(of_job(kube, phase="Running"))
    cached.put(Kind.JOB, old)
    known = cached.get(*SORT)
    assert known is not None and known["status"] == {"phase": "Running"}


def test_an_answer_that_comes_after_the_end_of_its_object_brings_no_ghost(kube: FakeKube) -> None:
    cached = CachedKube(kube)
    cached.put(Kind.JOB, copy.deepcopy(kube.objects[SORT]))
    answer = kube.apply_status(of_job(kube, phase="Running"))
    last = copy.deepcopy(kube.objects[SORT])
    kube.remove(*SORT)
    cached.drop(Kind.JOB, last)
    cached._store_answer(answer)
    assert cached.get(*SORT) is None


def test_a_list_finds_what_nobody_told(kube: FakeKube) -> None:
    cached = CachedKube(kube)
    ghost, kept = pod(kube, "ghost"), pod(kube, "kept")
    for each in (ghost, kept):
        cached.put(Kind.POD, each)
    kube.remove(Kind.POD, NAMESPACE, "ghost")
    pod(kube, "new")
    assert cached.resync(Kind.POD, None).changed == {(NAMESPACE, "sort")}
    names = [each["metadata"]["name"] for each in cached.list(Kind.POD, NAMESPACE, LABEL)]
    assert sorted(names) == ["kept", "new"]
    assert cached.resync(Kind.POD, None).changed == set(), "nothing has changed since"


def test_what_comes_in_while_all_is_listed_stays(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = CachedKube(kube)
    cached.put(Kind.POD, pod(kube, "old"))
    read = kube.list

    def slow(*words: Any) -> Any:
        found = read(*words)
        cached.put(Kind.POD, pod(kube, "young"))
        return found

    monkeypatch.setattr(kube, "list", slow)
    cached.resync(Kind.POD, None)
    names = [each["metadata"]["name"] for each in cached.list(Kind.POD, NAMESPACE, LABEL)]
    assert sorted(names) == ["old", "young"]


def test_it_knows_whether_kubernetes_answers(kube: FakeKube) -> None:
    cached = CachedKube(kube)
    kube.trouble = lambda verb, kind: Unreachable("no answer")
    with pytest.raises(Unreachable):
        cached.version()
    assert cached.is_away
    kube.trouble = lambda verb, kind: None
    cached.version()
    assert not cached.is_away


def test_what_goes_while_all_is_listed_is_gone(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = CachedKube(kube)
    made = pod(kube)
    read = kube.list

    def slow(*words: Any) -> Any:
        found = read(*words)
        kube.remove(Kind.POD, NAMESPACE, "one")
        last = {
            **made["metadata"],
            "resourceVersion": str(int(made["metadata"]["resourceVersion"]) + 1),
        }
        cached.drop(Kind.POD, {**made, "metadata": last})
        return found

    monkeypatch.setattr(kube, "list", slow)
    cached.resync(Kind.POD, None)
    assert cached.list(Kind.POD, NAMESPACE, LABEL) == ()
    cached.put(Kind.POD, {**pod(kube)})
    assert len(cached.list(Kind.POD, NAMESPACE, LABEL)) == 1, "another one of that name"


def test_what_is_to_be_deleted_and_is_gone_already_is_forgotten(kube: FakeKube) -> None:
    cached = CachedKube(kube)
    one, two = pod(kube), pod(kube, "two")
    for each in (one, two):
        cached.put(Kind.POD, each)
    kube.remove(Kind.POD, NAMESPACE, "one")  # and nobody tells
    assert not cached.delete(Kind.POD, NAMESPACE, "one", one["metadata"]["uid"])
    assert not cached.delete(Kind.POD, NAMESPACE, "two", "another-uid")
    assert [each["metadata"]["name"] for each in cached.list(Kind.POD, NAMESPACE, LABEL)] == ["two"]


def test_objects_of_a_kind_that_is_not_served_do_not_exist(kube: FakeKube) -> None:
    cached = CachedKube(kube)
    cached.put(Kind.CLUSTER, {**Kind.CLUSTER.header, "metadata": cluster_metadata("sort-1")})
    # The client itself says of a deletion that there was nothing.
    kube.trouble = lambda verb, kind: None if verb == "delete" else NotInstalled("no rayclusters")
    assert cached.get(Kind.JOB, NAMESPACE, "other") is None
    assert not cached.delete(Kind.CLUSTER, NAMESPACE, "sort-1", "uid-1")
    assert cached.list(Kind.CLUSTER, NAMESPACE, LABEL) == ()


def cluster_metadata(name: str) -> dict[str, Any]:
    labels = {JOB_LABEL: "sort"}
    names = {"name": name, "namespace": NAMESPACE, "uid": "uid-1", "resourceVersion": "1"}
    return {**names, "labels": labels}
