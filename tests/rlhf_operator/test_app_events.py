"""Events of watches, and the jobs that they add to the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from rlhf_kube.errors import Unreachable
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.cached_kube import CachedKube, Key
from rlhf_operator.config import OperatorConfig
from rlhf_operator.decide.observed import PodProblem
from rlhf_operator.process.app import App
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.stop import Stop
from rlhf_operator.process.watching import Watch

from .fake_head import FakeHeads
from .world import NAMESPACE, World, manifest

SORT: Key = (NAMESPACE, "sort")


@pytest.fixture
def app() -> App:
    world = World(FakeHeads(listens=False))
    return App(OperatorConfig(), world.cached, world.reconciler, in_cluster=False)


def job(**metadata: Any) -> dict[str, Any]:
    """An RLHFJob as a watch tells of it."""
    own = {"uid": "u-1", "generation": 1, "resourceVersion": "7", "labels": {"team": "x"}}
    document = manifest()
    return {**document, "metadata": {**document["metadata"], **own, **metadata}}


class QuietWatch(Watch):
    """Nothing happens."""

    async def run(self, on_ready: Callable[[], None]) -> None:
        on_ready()
        await self._stop.wait()


def reconciles(app: App, *events: tuple[str | None, Any]) -> list[Key]:
    """Return the jobs in the queue after the last of these events."""
    handlers: dict[str, Callable[..., Awaitable[None]]] = {
        "RLHFJob": app.on_job,
        "RayCluster": app.on_cluster,
        "Pod": app.on_pod,
    }

    async def run() -> list[Key]:
        taken: list[Key] = []
        for type, document in events:
            taken = []
            await handlers[document["kind"]](event={"type": type, "object": document})
            while len(app.queue):
                jobs = app.queue.take()
                taken.append(await anext(jobs))
                await jobs.aclose()  # type: ignore[attr-defined]
        return taken

    return asyncio.run(run())


def test_an_existing_job_and_a_new_one_are_reconciled(app: App) -> None:
    assert reconciles(app, (None, job())) == [SORT]
    assert reconciles(app, ("ADDED", job(name="other"))) == [(NAMESPACE, "other")]


def test_the_operators_own_writes_lead_to_nothing(app: App) -> None:
    written = job(resourceVersion="8", managedFields=[{}])
    written["status"] = {"phase": "Running"}
    assert reconciles(app, ("ADDED", job()), ("MODIFIED", written)) == []


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
def test_changes_of_others_are_reconciled(app: App, change: dict[str, Any]) -> None:
    assert reconciles(app, ("ADDED", job()), ("MODIFIED", job(**change))) == [SORT]
    assert reconciles(app, ("MODIFIED", job(**change, resourceVersion="9"))) == []


def ended(**metadata: Any) -> dict[str, Any]:
    """A job that has ended, and holds nothing."""
    made = job(**metadata)
    made["status"] = {"phase": "Succeeded", "observedGeneration": made["metadata"]["generation"]}
    return made


def test_jobs_that_have_ended_are_counted_and_cost_nothing_else(app: App) -> None:
    assert reconciles(app, (None, ended())) == []
    jobs = app.reconciler.metrics.registry.get_sample_value
    assert jobs("rlhf_operator_jobs", {"phase": "Succeeded"}) == 1
    assert app.kube.list(Kind.JOB, NAMESPACE) == () and app.kube._versions(Kind.JOB, None) == {}
    assert reconciles(app, ("MODIFIED", ended(resourceVersion="8"))) == []
    changed = ended(resourceVersion="9")
    changed["metadata"]["generation"] = 2
    assert reconciles(app, ("MODIFIED", changed)) == [SORT], "somebody has edited it"


def test_a_watch_that_begins_anew_may_have_missed_something(app: App) -> None:
    assert reconciles(app, ("ADDED", job()), (None, job())) == [SORT]


def test_a_deleted_job_is_reconciled_and_forgotten(app: App) -> None:
    assert reconciles(app, ("ADDED", job()), ("DELETED", job())) == [SORT]
    assert reconciles(app, ("DELETED", job()), ("MODIFIED", job())) == [SORT]


def child(status: dict[str, Any] | None = None, kind: str = "Pod") -> dict[str, Any]:
    """Something that was made for a job."""
    labels = {"rlhf-operator.dev/job": "sort", "ray.io/group": "critics"}
    metadata: dict[str, Any] = {"name": "sort-1-worker", "namespace": NAMESPACE, "labels": labels}
    metadata |= {"uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": kind, "metadata": metadata, "status": status or {}}


@pytest.mark.parametrize("kind", ["RLHFJob", "Pod", "RayCluster"])
def test_a_list_without_news_does_not_end_a_back_off(app: App, kind: str) -> None:
    """While rights are lost, watches begin anew all the time."""
    document = job() if kind == "RLHFJob" else child(kind=kind)
    handle: dict[str, Callable[..., Awaitable[None]]] = {
        "RLHFJob": app.on_job,
        "RayCluster": app.on_cluster,
        "Pod": app.on_pod,
    }

    async def run() -> None:
        await handle[kind](event={"type": None, "object": document})
        jobs = app.queue.take()
        assert await anext(jobs) == SORT
        app.queue.add_after(SORT, 3600.0)
        await jobs.aclose()  # type: ignore[attr-defined]
        await handle[kind](event={"type": None, "object": document})
        assert len(app.queue) == 0
        newer = {**document["metadata"], "resourceVersion": "8", "generation": 2}
        await handle[kind](event={"type": None, "object": {**document, "metadata": newer}})
        assert len(app.queue) == 1

    asyncio.run(run())


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
        app.reconciler.observer,
        "remember",
        lambda key, cluster, problem: told.append((key, problem)),
    )
    return told


def test_every_change_of_a_jobs_cluster_is_reconciled(app: App) -> None:
    cluster = child(kind="RayCluster")
    for type in (None, "ADDED", "MODIFIED", "MODIFIED", "DELETED"):
        assert reconciles(app, (type, cluster)) == [SORT]


@pytest.mark.parametrize("type", [None, "ADDED", "MODIFIED"])
def test_what_killed_a_pod_is_kept_for_the_reconcile(
    app: App, remembered: list[tuple[Key, PodProblem]], type: str | None
) -> None:
    assert reconciles(app, (type, child(KILLED))) == [SORT]
    ((key, problem),) = remembered
    assert key == SORT and problem.reason == "OutOfMemory"
    assert problem.message.startswith("sort-1-worker of pool critics: container ray used more")


@pytest.mark.parametrize(
    ("type", "status"), [("DELETED", KILLED), ("MODIFIED", WAITING), ("MODIFIED", {})]
)
def test_what_the_reconcile_itself_observes_is_not_kept(
    app: App, remembered: list[tuple[Key, PodProblem]], type: str, status: dict[str, Any]
) -> None:
    assert reconciles(app, (type, child(status))) == [SORT]
    assert remembered == []


def test_a_part_that_dies_ends_the_operator(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: Any) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("rlhf_operator.process.app.Watch", QuietWatch)
    monkeypatch.setattr(app, "_ping", die)
    with pytest.raises(RuntimeError, match="nobody foresaw this"):
        asyncio.run(asyncio.wait_for(app.run(Stop()), 60))


def test_a_namespace_that_is_lost_takes_no_other_along(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = OperatorConfig(namespaces=("gone", "here"))
    app = App(config, world.cached, world.reconciler, in_cluster=False)
    tries: list[str | None] = []

    async def run() -> None:
        stop, again = Stop(), asyncio.Event()

        class LosingWatch(QuietWatch):
            async def run(self, on_ready: Callable[[], None]) -> None:
                tries.append(self.namespace)
                if self.namespace == "gone":
                    again.set() if tries.count("gone") > 2 else None
                    raise PermissionError("403: it is not there any more")
                await super().run(on_ready)

        monkeypatch.setattr("rlhf_operator.process.app.Watch", LosingWatch)
        monkeypatch.setattr("rlhf_operator.process.app.FIRST_RETRY_SECONDS", 0.01)
        running = asyncio.create_task(app.run(stop))
        await again.wait()
        assert not running.done() and app.is_started
        stop.set()
        await running

    asyncio.run(asyncio.wait_for(run(), 60))
    assert tries.count("here") == 1 and tries.count("gone") >= 3
    watched = app.reconciler.metrics.registry.get_sample_value
    assert watched("rlhf_operator_namespace_watched", {"namespace": "gone"}) == 0
    assert watched("rlhf_operator_namespace_watched", {"namespace": "here"}) == 1
    assert "gone cannot be watched" in caplog.text and "here cannot" not in caplog.text


def test_jobs_that_wait_for_the_folder_of_a_deleted_job_are_looked_at(app: App) -> None:
    def named(name: str, folder: str) -> dict[str, Any]:
        document = job(name=name, uid=name)
        claim = {"claimName": "shared", "subPath": folder}
        storage = {"persistentVolumeClaim": claim}
        return {**document, "spec": {**document["spec"], "checkpoint": {"storage": storage}}}

    first, *others = named("a", "x"), named("b", "x"), named("c", "x/y"), named("d", "y")
    put = [("ADDED", each) for each in (first, *others)]
    first["metadata"]["resourceVersion"] = "8"
    assert sorted(reconciles(app, *put, ("DELETED", first))) == [
        (NAMESPACE, name) for name in ("a", "b", "c")
    ]


def test_all_objects_of_jobs_are_cached_before_the_first_reconcile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that knew a job, and not yet its head's pod, would take its driver for lost."""
    world.run_to_training()
    fresh = CachedKube(world.kube)
    app = App(OperatorConfig(), fresh, world.reconciler, in_cluster=False)
    known: list[int] = []
    add = app.queue.add
    label = "rlhf-operator.dev/job=sort"
    kinds = (Kind.POD, Kind.CLUSTER)

    def added(key: Key) -> None:
        known.append(sum(len(fresh.list(kind, NAMESPACE, label)) for kind in kinds))
        add(key)

    async def run() -> None:
        stop = Stop()

        class EndingWatch(QuietWatch):
            async def run(self, on_ready: Callable[[], None]) -> None:
                stop.set()

        monkeypatch.setattr("rlhf_operator.process.app.Watch", EndingWatch)
        monkeypatch.setattr(app.queue, "add", added)
        await app.run(stop)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert known and min(known) == 4, "a cluster, its head and its workers"


def test_an_ended_job_whose_deletion_nobody_told_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run_to_training()
    found = world.kube.objects[Kind.POD, NAMESPACE, world.pods()[0]]
    pod = {**found, "metadata": {**found["metadata"], "uid": "another"}}
    world.head().finish()
    world.wait(10)
    app = App(OperatorConfig(), world.cached, world.reconciler, in_cluster=False)
    ended = world.kube.objects[Kind.JOB, NAMESPACE, "sort"]
    shown = world.metrics.registry.get_sample_value

    async def run() -> None:
        await app.on_job({"type": None, "object": ended})  # type: ignore[typeddict-item]
        assert shown("rlhf_operator_jobs", {"phase": "Succeeded"}) == 1 and not len(app.queue)
        world.cached.put(Kind.POD, pod)  # what is gone without a word, of a job that has ended
        await app._list(None)
        app.queue = JobQueue()
        del world.kube.objects[Kind.JOB, NAMESPACE, "sort"]
        await app._list(None)
        assert len(app.queue) == 1
        await world.reconciler.reconcile(SORT, lambda: None)
        assert shown("rlhf_operator_jobs", {"phase": "Succeeded"}) == 0
        await app._list(None)
        assert len(app.queue) == 1, "and nobody asks for it again"

    asyncio.run(run())


def test_all_is_listed_again_soon_after_a_watch_has_begun_anew_until_it_can_be(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECK_SECONDS", "RELIST_DELAY_SECONDS"):
        monkeypatch.setattr("rlhf_operator.process.app." + name, 0.01)
    lists = 0

    async def list_all(namespace: str | None) -> None:
        nonlocal lists
        lists += 1
        if lists == 1:
            raise Unreachable("gone again")

    async def tell(type: Any) -> int:
        told: Any = {"type": type, "object": job()}
        await app.on_job(told)
        with suppress(TimeoutError):
            await asyncio.wait_for(app._resync(), 0.3)
        return lists

    monkeypatch.setattr(app, "_list", list_all)
    assert asyncio.run(tell("MODIFIED")) == 0
    assert asyncio.run(tell(None)) == 2, "the second time it could be listed, and that was that"
