"""Loops that take jobs from the queue and reconcile them, in threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest

from rlhf_kube.errors import Conflict, Forbidden, Unreachable
from rlhf_operator.clients.cached_kube import Key
from rlhf_operator.clients.fair_semaphore import FairThreadPool
from rlhf_operator.process.leadership import NotLeading
from rlhf_operator.process.metrics import Metrics
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.reconcile_workers import STANDBY_SECONDS, Workers
from rlhf_operator.process.reconciler import Reconciler

A: Key = ("team", "a")
B: Key = ("team", "b")
SECONDS = 30.0
Planned = Callable[[], None]
Reconcile = Callable[[Key, Planned], float | None]


class ScriptedReconciler(Reconciler):
    """Does what a test says at each reconcile."""

    def __init__(self, reconcile: Reconcile, threads: FairThreadPool) -> None:
        self._script = reconcile
        self._threads = threads

    async def reconcile(self, key: Key, planned: Planned) -> float | None:
        again: float | None = await self._threads(key[0], self._script, key, planned)
        return again


class Recorded(JobQueue):
    """Records when jobs are added, and adds them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[Key, float]] = []
        self.adders: set[threading.Thread] = set()
        """Who added jobs: a queue is for one thread."""

    def add(self, key: Key) -> None:
        self.adders.add(threading.current_thread())
        super().add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        self.later.append((key, seconds))
        super().add_after(key, 0.0)


class Scene:
    """Some workers, and how they are watched."""

    def __init__(self, reconcile: Reconcile, threads: FairThreadPool) -> None:
        self.queue = Recorded()
        self.metrics = Metrics()
        self.workers = Workers(self.queue, ScriptedReconciler(reconcile, threads), self.metrics)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def errors(self, reason: str) -> float:
        return self.count("rlhf_operator_reconcile_errors_total", reason=reason)

    def reconciles(self, outcome: str) -> float:
        return self.count("rlhf_operator_reconcile_seconds_count", outcome=outcome)


def play(reconcile: Reconcile, act: Callable[[Scene], Awaitable[None]], number: int = 1) -> Scene:
    """Let so many workers work until a test has seen enough of them."""

    async def run() -> Scene:
        with closing(FairThreadPool(number)) as threads:
            scene = Scene(reconcile, threads)
            working = asyncio.create_task(scene.workers.run(number))
            try:
                await asyncio.wait_for(act(scene), SECONDS)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        assert working.cancelled()
        return scene

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_reconcile_runs_in_a_thread() -> None:
    seen: list[tuple[Key, str]] = []

    def reconcile(key: Key, planned: Planned) -> None:
        seen.append((key, threading.current_thread().name))

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        scene.queue.add(B)
        await until(lambda: scene.reconciles("done") == 2)

    scene = play(reconcile, act)
    assert seen == [(A, "reconcile_0"), (B, "reconcile_0")]
    assert scene.queue.later == [] and scene.reconciles("failed") == 0


def test_a_job_waits_while_another_replica_may_act() -> None:
    answers: Iterator[Exception | None] = iter([NotLeading(), None])

    def reconcile(key: Key, planned: Planned) -> None:
        error = next(answers)
        if error is not None:
            raise error

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        await until(lambda: scene.reconciles("done") == 1)

    scene = play(reconcile, act)
    assert scene.queue.later == [(A, STANDBY_SECONDS)]
    assert scene.reconciles("failed") == 0, "no error of the job"


def test_the_next_reconcile_is_when_the_last_one_says() -> None:
    answers = iter([5.0, 0.0, None])

    def reconcile(key: Key, planned: Planned) -> float | None:
        return next(answers)

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        await until(lambda: scene.reconciles("done") == 3)

    scene = play(reconcile, act)
    assert scene.queue.later == [(A, 5.0), (A, 0.0)]


def test_a_failed_reconcile_is_repeated_later_and_later() -> None:
    seen: list[Key] = []

    def reconcile(key: Key, planned: Planned) -> None:
        seen.append(key)
        if len(seen) not in (9, 11):
            raise Unreachable("no answer")

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        await until(lambda: scene.reconciles("done") == 1)
        scene.queue.add(A)
        await until(lambda: scene.reconciles("done") == 2)

    scene = play(reconcile, act)
    waits = [seconds for _, seconds in scene.queue.later]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 1]  # the last one after a reconcile that succeeded
    assert scene.errors("KubernetesUnreachable") == 9 and scene.reconciles("failed") == 9


def test_one_jobs_trouble_is_no_others() -> None:
    def reconcile(key: Key, planned: Planned) -> None:
        if key == A:
            raise Forbidden("403")

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        await until(lambda: scene.reconciles("failed") >= 3)
        scene.queue.add(B)
        await until(lambda: scene.reconciles("done") == 1)

    assert {key for key, _ in play(reconcile, act).queue.later} == {A}


@pytest.mark.parametrize(
    ("error", "reason", "level", "said"),
    [
        (Conflict("409"), "KubernetesConflict", logging.INFO, "the job has changed meanwhile"),
        (
            Forbidden("403: no"),
            "KubernetesForbidden",
            logging.WARNING,
            "403: no; reconciling again in",
        ),
        (ZeroDivisionError("oh"), "Bug", logging.ERROR, "reconciling again in 1 s"),
    ],
)
def test_failures_are_told_by_what_they_are(
    error: Exception, reason: str, level: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([error])

    def reconcile(key: Key, planned: Planned) -> None:
        for each in errors:
            raise each

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        await until(lambda: scene.reconciles("done") == 1)

    with caplog.at_level(logging.INFO, "rlhf_operator.process.reconcile_workers"):
        scene = play(reconcile, act)
    (record,) = caplog.records
    assert record.levelno == level and said in record.getMessage()
    assert (record.job, record.reason) == ("team/a", reason)  # type: ignore[attr-defined]
    assert (record.exc_info is not None) == (level == logging.ERROR)
    assert scene.errors(reason) == 1


def test_so_many_jobs_are_reconciled_at_once() -> None:
    both = threading.Barrier(2)

    def reconcile(key: Key, planned: Planned) -> None:
        both.wait(SECONDS)  # it breaks where the other reconcile waits for this one

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        scene.queue.add(B)
        await until(lambda: scene.reconciles("done") + scene.reconciles("failed") == 2)

    assert play(reconcile, act, number=2).reconciles("done") == 2


def test_a_plan_that_is_made_elsewhere_leads_to_a_reconcile() -> None:
    tell: list[Planned] = []

    def reconcile(key: Key, planned: Planned) -> None:
        tell.append(planned)

    async def act(scene: Scene) -> None:
        scene.queue.add(A)
        await until(lambda: scene.reconciles("done") == 1)
        threading.Thread(target=tell[0]).start()
        await until(lambda: scene.reconciles("done") == 2)

    assert play(reconcile, act).queue.adders == {threading.main_thread()}


def test_workers_end_when_cancelled_though_a_reconcile_is_slow() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reconcile(key: Key, planned: Planned) -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    async def run() -> None:
        with closing(FairThreadPool(1)) as threads:
            scene = Scene(reconcile, threads)
            working = asyncio.create_task(scene.workers.run(1))
            scene.queue.add(A)
            await until(begun.is_set)
            working.cancel()
            await asyncio.wait({working}, timeout=SECONDS)
            assert working.cancelled() and not go_on.is_set()
            go_on.set()

    asyncio.run(run())
