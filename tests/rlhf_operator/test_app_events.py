"""Which events lead to looks at which jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest

from rlhf_operator.app import App
from rlhf_operator.config import OperatorConfig
from rlhf_operator.decide.observed import PodProblem
from rlhf_operator.kube.protocol import Kind
from rlhf_operator.observe import Key

from .fake_head import FakeHeads
from .world import NAMESPACE, World, manifest

SORT: Key = (NAMESPACE, "sort")


@pytest.fixture
def app() -> App:
    world = World(FakeHeads(listens=False))
    return App(OperatorConfig(), world.reconciler, in_cluster=False)


def job(**metadata: Any) -> dict[str, Any]:
    """An RLHFJob as a watch tells of it."""
    own = {"uid": "u-1", "generation": 1, "resourceVersion": "7", "labels": {"team": "x"}}
    document = manifest()
    return {**document, "metadata": {**document["metadata"], **own, **metadata}}


def looks(app: App, *events: tuple[str | None, Any]) -> list[tuple[Key, bool]]:
    """Which looks follow from the last of these events, as a watch tells of them."""
    handlers: dict[str, Callable[..., Awaitable[None]]] = {
        "RLHFJob": app.on_job,
        "RayCluster": app.on_child,
        "Pod": app.on_pod,
    }

    async def run() -> list[tuple[Key, bool]]:
        taken: list[tuple[Key, bool]] = []
        for type, document in events:
            taken = []
            await handlers[document["kind"]](type=type, body=kopf.Body(document))
            while len(app.queue):
                jobs = app.queue.take()
                taken.append(await anext(jobs))
                await jobs.aclose()  # type: ignore[attr-defined]
        return taken

    return asyncio.run(run())


def test_a_job_that_is_there_already_and_a_new_one_are_looked_at(app: App) -> None:
    assert looks(app, (None, job())) == [(SORT, True)]
    assert looks(app, ("ADDED", job(name="other"))) == [((NAMESPACE, "other"), True)]


def test_the_operators_own_writes_lead_to_nothing(app: App) -> None:
    written = job(resourceVersion="8", finalizers=["rlhf-operator.dev/cluster"], managedFields=[{}])
    written["status"] = {"phase": "Running"}
    assert looks(app, ("ADDED", job()), ("MODIFIED", written)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 2},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"labels": {"team": "y"}},
        {"annotations": {"example.com/again": "please"}},
        {"uid": "u-2"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_others_change_is_looked_at(app: App, change: dict[str, Any]) -> None:
    assert looks(app, ("ADDED", job()), ("MODIFIED", job(**change))) == [(SORT, True)]
    assert looks(app, ("MODIFIED", job(**change, resourceVersion="9"))) == []


def test_a_watch_that_begins_anew_may_have_missed_something(app: App) -> None:
    assert looks(app, ("ADDED", job()), (None, job())) == [(SORT, True)]


def test_a_job_that_is_gone_is_looked_at_and_forgotten(app: App) -> None:
    assert looks(app, ("ADDED", job()), ("DELETED", job())) == [(SORT, True)]
    assert looks(app, ("DELETED", job()), ("MODIFIED", job())) == [(SORT, True)]


def child(status: dict[str, Any] | None = None, kind: str = "Pod") -> dict[str, Any]:
    """Something that was made for a job."""
    labels = {"rlhf-operator.dev/job": "sort"}
    metadata = {"name": "sort-1-worker", "namespace": NAMESPACE, "labels": labels}
    return {"kind": kind, "metadata": metadata, "status": status or {}}


KILLED: dict[str, Any] = {
    "containerStatuses": [
        {"name": "ray", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    ]
}
WAITING: dict[str, Any] = {
    "containerStatuses": [{"name": "ray", "state": {"waiting": {"reason": "ErrImagePull"}}}]
}


@pytest.fixture
def remembered(app: App, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Key, PodProblem]]:
    told: list[tuple[Key, PodProblem]] = []
    monkeypatch.setattr(
        app.reconciler.observer, "remember", lambda key, problem: told.append((key, problem))
    )
    return told


def test_whatever_happens_to_a_jobs_cluster_is_looked_at(app: App) -> None:
    cluster = child(kind="RayCluster")
    for type in (None, "ADDED", "MODIFIED", "MODIFIED", "DELETED"):
        assert looks(app, (type, cluster)) == [(SORT, True)]


@pytest.mark.parametrize("type", [None, "ADDED", "MODIFIED"])
def test_what_killed_a_pod_is_kept_for_the_look(
    app: App, remembered: list[tuple[Key, PodProblem]], type: str | None
) -> None:
    assert looks(app, (type, child(KILLED))) == [(SORT, True)]
    ((key, problem),) = remembered
    assert key == SORT and problem.reason == "OutOfMemory"


@pytest.mark.parametrize(
    ("type", "status"), [("DELETED", KILLED), ("MODIFIED", WAITING), ("MODIFIED", {})]
)
def test_what_the_look_itself_will_see_is_not_kept(
    app: App, remembered: list[tuple[Key, PodProblem]], type: str, status: dict[str, Any]
) -> None:
    assert looks(app, (type, child(status))) == [(SORT, True)]
    assert remembered == []


def test_a_part_that_dies_ends_the_operator(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(stop_flag: asyncio.Event, **_: Any) -> None:
        await stop_flag.wait()

    async def die(*_: Any) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(kopf, "operator", watch)
    monkeypatch.setattr(app, "_ping", die)
    with pytest.raises(RuntimeError, match="nobody foresaw this"):
        asyncio.run(asyncio.wait_for(app.run(asyncio.Event()), 60))


@pytest.mark.parametrize(
    ("kind", "selectors"),
    [
        (Kind.JOB, []),
        (Kind.CLUSTER, ["rlhf-operator.dev/job"]),
        (Kind.POD, ["rlhf-operator.dev/job"]),
    ],
)
def test_of_pods_and_clusters_only_the_jobs_own_are_asked_for(
    app: App, monkeypatch: pytest.MonkeyPatch, kind: Kind, selectors: list[str]
) -> None:
    given: list[kopf.OperatorSettings] = []

    async def watch(settings: kopf.OperatorSettings, **_: Any) -> None:
        given.append(settings)

    monkeypatch.setattr(kopf, "operator", watch)
    asyncio.run(app.run(asyncio.Event()))
    place = kind.value
    resource = kopf.Resource(place.group, place.version, place.plural)
    assert given[0].watching.label_selectors.collect(resource) == selectors
