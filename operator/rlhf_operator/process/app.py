"""The event loop of the operator: watches fill the cache and the queue, workers reconcile.

Every namespace has its own watch: losing one affects no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from rlhf_api.on_cluster import KUBERAY
from rlhf_api.reading.status import read_status
from rlhf_kube.errors import KubeError
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.cached_kube import WATCHED, CachedKube, Key, is_settled, job_key
from rlhf_operator.clients.discovery import check_job_kind, serves
from rlhf_operator.config import OperatorConfig
from rlhf_operator.decide.pod_messages import named_problem
from rlhf_operator.observe.parse import parse_pod
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.reconcile_workers import MAX_CONCURRENT_RECONCILES, Workers
from rlhf_operator.process.reconciler import Reconciler
from rlhf_operator.process.stop import Stop
from rlhf_operator.process.watching import Event, Handler, Watch

log = logging.getLogger(__name__)
PING_SECONDS = 60.0
"""Interval of requests that test the connection to Kubernetes."""
RESYNC_SECONDS = 180.0
"""Interval of full lists; bounds how long a deletion missed by a restarted watch is unnoticed."""
CHECK_SECONDS = 5.0
"""Interval at which the conditions for an early relist are checked."""
END_SECONDS = 10.0
"""Time limit for watches to end."""
SETTLED_SECONDS = 5.0
"""Time after which a new watch has listed its objects."""
RELIST_DELAY_SECONDS = 10.0
"""Time after which a restarted watch, and others that lost their connection at the same moment,
have listed their objects."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
"""Upper bound of the wait between two tries to watch a lost namespace."""
STABLE_SECONDS = 60.0
"""A watch that has run for this long is retried without back-off."""
DELETED = "DELETED"
"""Type of the event of a deletion, and of an object that loses the selected label."""


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class App:
    """All parts that run in the event loop."""

    config: OperatorConfig
    kube: CachedKube
    reconciler: Reconciler
    in_cluster: bool
    """True if this process is a pod with a service account's token."""
    queue: JobQueue = field(default_factory=JobQueue)
    is_started: bool = False
    """True once a watch has started; it may not have listed its objects yet."""
    _leads: asyncio.Event = field(default_factory=_set_event)
    """Set while no other replica is the leader."""
    _digests: dict[Key, int] = field(default_factory=dict)
    """By job, a digest of all that others write."""
    _relisted: float | None = None
    """Time when a restarted watch last reported its list, or a list failed. None: not since the
    last resync."""

    @property
    def is_standby(self) -> bool:
        """True while another replica is the leader."""
        return not self._leads.is_set()

    def set_leading(self, leads: bool) -> None:
        """Begin or cease to be the leader."""
        if leads:
            self._leads.set()
            # Another replica may have changed them all.
            for key in self._digests:
                self.queue.add(key)
        else:
            self._leads.clear()
            # The leader has the series of all jobs.
            self.reconciler.metrics.jobs.forget_jobs()

    async def stand_by(self, stop: Stop) -> None:
        """Wait until this replica leads, or until stop is set."""
        waits = [asyncio.create_task(one.wait()) for one in (self._leads, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def run(self, stop: Stop) -> None:
        """Watch and work until stop is set, or until a part fails.

        Raises:
            Exception: the part's error; the process is started again.
        """
        workers = Workers(self.queue, self.reconciler, self.reconciler.metrics)
        watches = [self._watch(namespace, stop) for namespace in self._namespaces()]
        tasks = [
            asyncio.create_task(part)
            for part in (
                workers.run(MAX_CONCURRENT_RECONCILES),
                self._ping(),
                self._resync(),
                *watches,
            )
        ]
        for task in tasks:
            task.add_done_callback(lambda _: stop.set())  # no part ends by itself
        await stop.wait()
        for task in tasks[:3]:  # watches end by `stop`
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=END_SECONDS)
        for task in late:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _namespaces(self) -> tuple[str | None, ...]:
        """Return the namespaces to watch; None: all of them by one watch."""
        return self.config.namespaces or (None,)

    async def _watch(self, namespace: str | None, stop: Stop) -> None:
        """Watch a namespace, again after every failure, until stop is set."""
        scope, retries = namespace or "all namespaces", 0
        while not stop.is_set():
            begin = time.monotonic()
            try:
                await self._watch_once(namespace, stop)
            except Exception as error:  # any error of kopf or the API server: the others continue
                retries = 0 if time.monotonic() - begin > STABLE_SECONDS else retries
                pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(retries, 9), MAX_RETRY_SECONDS)
                retries += 1
                cause = f"{type(error).__name__}: {next(iter(error.args), error)}"
                log.error(
                    "%s cannot be watched, so its jobs are not reconciled (%s); trying again in "
                    "%.0f s; if the API server answers, check that the namespace exists, and the "
                    "operator's role in it",
                    scope,
                    cause,
                    pause,
                    extra={"reason": "NamespaceLost"},
                )
                self.reconciler.metrics.set_watched(scope, is_watched=False)
                await stop.pause(pause)

    async def _watch_once(self, namespace: str | None, stop: Stop) -> None:
        """Watch until stop is set, or until KubeRay is installed or removed.

        Raises:
            Exception: it cannot be watched.
        """
        await asyncio.to_thread(check_job_kind, self.kube.kube, namespace)
        has_kuberay = await asyncio.to_thread(serves, self.kube.kube, Kind.CLUSTER, namespace)
        self._set_kuberay(namespace, has_kuberay)
        # A decision about a job needs the job's clusters and pods, so they are cached first.
        await self._list(namespace)
        ready = asyncio.Event()
        watch = Watch(namespace, self._handlers(has_kuberay), self.in_cluster)
        watching = asyncio.create_task(watch.run(ready.set))
        others = [
            asyncio.create_task(stop.wait()),
            asyncio.create_task(self._await_kuberay(namespace, not has_kuberay)),
            asyncio.create_task(self._relist_when_ready(namespace, ready)),
        ]
        try:
            await asyncio.wait({watching, *others[:2]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in others:
                task.cancel()
            watch.end()
            outcomes = await asyncio.gather(*others, return_exceptions=True)
        await watching
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _handlers(self, has_kuberay: bool) -> dict[Kind, Handler]:
        jobs_and_pods: dict[Kind, Handler] = {Kind.JOB: self.on_job, Kind.POD: self.on_pod}
        return jobs_and_pods | ({Kind.CLUSTER: self.on_cluster} if has_kuberay else {})

    def _set_kuberay(self, namespace: str | None, is_served: bool) -> None:
        self.reconciler.observer.has_kuberay = is_served
        if not is_served:
            log.error(
                "this cluster has no kind RayCluster: install KubeRay %s or newer; jobs wait",
                KUBERAY,
                extra={"reason": "KubeRayMissing"},
            )
            # Without KubeRay's kind their clusters do not exist any more.
            for key in self.kube.forget_all(Kind.CLUSTER, namespace):
                self.queue.add(key)

    async def _await_kuberay(self, namespace: str | None, is_served: bool) -> None:
        """Return when the API server serves RayClusters, or no longer does."""
        while True:
            await asyncio.sleep(PING_SECONDS / 2)
            try:
                served = await asyncio.to_thread(serves, self.kube.kube, Kind.CLUSTER, namespace)
                if served is is_served:
                    return
            except KubeError as error:
                log.warning("Kubernetes does not answer: %s", error)

    async def on_job(self, event: Event) -> None:
        """Handle an RLHFJob that exists, has changed, or was deleted."""
        self._record_list(event)
        type, manifest = event["type"], event["object"]
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if type == DELETED:
            self._digests.pop(key, None)
            self.reconciler.metrics.jobs.forget_job(key)
            self.kube.drop(Kind.JOB, manifest)
            # Others may wait for its folder.
            for changed in (key, *self.kube.folders.overlapping(manifest)):
                self.queue.add(changed)
            return
        self.kube.put(Kind.JOB, manifest)
        # Every status write of the operator causes an event, too. Without the digest each reconcile
        # would cause another one. A changed spec has another generation.
        names = ("uid", "generation", "deletionTimestamp", "labels", "annotations")
        digest = hash(str([metadata.get(name) for name in names]))
        has_changed = self._digests.get(key) != digest
        self._digests[key] = digest
        # At a start there may be thousands of ended jobs: they only get their metrics.
        if type is None and is_settled(manifest) and not self.is_standby:
            self.reconciler.metrics.jobs.set_job(key, read_status(manifest.get("status")), 0)
        elif has_changed:  # else the operator itself wrote the status
            self.queue.add(key)
        elif type is None:
            self.queue.add_if_idle(key)

    async def on_cluster(self, event: Event) -> None:
        """Handle a change of a job's RayCluster."""
        self._on_child(Kind.CLUSTER, event)

    async def on_pod(self, event: Event) -> None:
        """Handle a change of a job's pod."""
        pod = parse_pod(event["object"])
        problem = named_problem(pod)
        key = job_key(Kind.POD, event["object"]["metadata"])
        # KubeRay deletes a failed pod at once, and its problem with it: keep that.
        if key and problem and problem.outlives_pod and event["type"] != DELETED:
            self.reconciler.observer.remember(key, pod.owner, problem)
        self._on_child(Kind.POD, event)

    def _on_child(self, kind: Kind, event: Event) -> None:
        self._record_list(event)
        type, manifest = event["type"], event["object"]
        key = job_key(kind, manifest["metadata"])
        if type == DELETED:
            self.kube.drop(kind, manifest)
            is_news = True
        else:
            is_news = self.kube.put(kind, manifest)
        if key is None:
            return
        # A watch that begins anew lists everything. That must not end the back-off of a job: if
        # rights are lost, watches begin anew all the time.
        if is_news or type is not None:
            self.queue.add(key)
        else:
            self.queue.add_if_idle(key)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._ping_once()

    async def _ping_once(self) -> None:
        try:
            await asyncio.to_thread(self.kube.version)
        except KubeError as error:
            log.warning("Kubernetes does not answer: %s", error)

    async def _resync(self) -> None:
        """List all objects from time to time."""
        # No watch reports what was deleted while it was restarted.
        while True:
            await self._wait_until_due()
            self._relisted = None
            self.reconciler.metrics.jobs.forget_ended()
            for namespace in self._namespaces():
                try:
                    await self._list(namespace)
                except KubeError as error:
                    log.warning("%s cannot be listed: %s", namespace or "all namespaces", error)
                    self._relisted = time.monotonic()  # try again soon

    async def _wait_until_due(self) -> None:
        """Wait for the next resync.

        It is due at an interval, soon after a watch was restarted, and at once when Kubernetes
        answers again after an outage.
        """
        was_away = False
        for _ in range(int(RESYNC_SECONDS / CHECK_SECONDS)):
            await asyncio.sleep(CHECK_SECONDS)
            if self.kube.is_away:
                was_away = True
                await self._ping_once()
            if was_away and not self.kube.is_away:
                return
            if (
                self._relisted is not None
                and time.monotonic() - self._relisted > RELIST_DELAY_SECONDS
            ):
                return

    def _record_list(self, event: Event) -> None:
        # Objects of a watch's first list have no event type.
        if event["type"] is None:
            self._relisted = time.monotonic()

    async def _list(self, namespace: str | None) -> None:
        """Correct the cache by lists, and add jobs with differences to the queue.

        Raises:
            KubeError: a kind cannot be listed.
        """
        changed: set[Key] = set()
        for kind in reversed(WATCHED):  # jobs last: their clusters and pods are in the cache then
            if kind is Kind.CLUSTER and not self.reconciler.observer.has_kuberay:
                continue
            expected = tuple(self._digests) if kind is Kind.JOB else ()
            result = await asyncio.to_thread(self.kube.resync, kind, namespace, expected)
            changed |= result.changed
            for key in result.deleted:
                self._digests.pop(key, None)
        for key in changed:
            self.queue.add(key)

    async def _relist_when_ready(self, namespace: str | None, ready: asyncio.Event) -> None:
        """Report a started watch, and list again for deletions just before its start."""
        await ready.wait()
        self.is_started = True
        scope = namespace or "all namespaces"
        self.reconciler.metrics.set_watched(scope, is_watched=True)
        log.info("watching %s", scope)
        await asyncio.sleep(SETTLED_SECONDS)
        try:
            await self._list(namespace)
        except KubeError as error:
            log.warning("%s cannot be listed: %s", scope, error)
