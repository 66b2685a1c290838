"""The operator's process: events lead to looks at jobs.

What watches tell is remembered, and says which job to look at. Each namespace is watched by itself:
one that is lost takes no other along.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from rlhf_api.on_cluster import KUBERAY
from rlhf_api.reading.status import read_status
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.cached import WATCHED, CachedKube, Key, is_settled, job_of
from rlhf_operator.clients.kube.discovery import ADVICE, knows
from rlhf_operator.clients.kube.protocol import Invalid, KubeError
from rlhf_operator.config import OperatorConfig
from rlhf_operator.decide.pod_messages import told_problem
from rlhf_operator.observe.parse import parse_pod
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.reconciler import Reconciler
from rlhf_operator.process.stop import Stop
from rlhf_operator.process.watching import Event, Handler, Watch
from rlhf_operator.process.workers import LOOKS_AT_ONCE, Workers

log = logging.getLogger(__name__)
PING_SECONDS = 60.0
"""From one sign of life of Kubernetes to the next, when nothing else is asked."""
RESYNC_SECONDS = 180.0
"""From one list of everything to the next: so long an object may be remembered that was the only
one of its kind and went while its watch began anew, which nobody tells."""
CHECK_SECONDS = 5.0
"""From one look at whether Kubernetes answers again to the next."""
END_SECONDS = 10.0
"""How long watches may take to end."""
SETTLED_SECONDS = 5.0
"""After so long a watch that has begun has listed what is there."""
AFRESH_SECONDS = 10.0
"""After so long a watch that began anew has listed what is there, and so have the others, which
may have lost their connection at the same moment."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
"""Between two tries to watch a namespace that is lost."""
WELL_SECONDS = 60.0
"""After so long a watch that fails has begun anew, and is tried again soon."""
GONE = "DELETED"
"""Also what a watch of labelled objects tells when an object loses the label, with the object as it
was before."""


@dataclass
class App:
    """Everything that lives in the event loop."""

    config: OperatorConfig
    kube: CachedKube
    reconciler: Reconciler
    in_cluster: bool
    """Whether this process is a pod, with a service account's token."""
    queue: JobQueue = field(default_factory=JobQueue)
    is_started: bool = False
    """Whether its watches were set going; they may have listed nothing yet."""
    stands_by: bool = False
    """Whether another replica acts, and this one is there to take over."""
    _seen: dict[Key, int] = field(default_factory=dict)
    """Of each job a digest of all that others write."""
    _listed: float | None = None
    """When a watch last told what it has listed, for it began anew, or a list failed. None: not
    since everything was listed."""

    async def run(self, stop: Stop) -> None:
        """Watch and work until told to stop, or until a part dies: the process is started again.

        Raises:
            Exception: what the part died of.
        """
        workers = Workers(self.queue, self.reconciler, self.reconciler.metrics)
        watches = [self._watch(each, stop) for each in self._places()]
        tasks = [
            asyncio.create_task(part)
            for part in (workers.run(LOOKS_AT_ONCE), self._ping(), self._resync(), *watches)
        ]
        for task in tasks:
            task.add_done_callback(lambda _: stop.set())  # none ends by itself
        await stop.wait()
        for task in tasks[:3]:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=END_SECONDS)
        for task in late:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _places(self) -> tuple[str | None, ...]:
        """Namespaces that are watched by themselves; None: all together."""
        return self.config.namespaces or (None,)

    async def _watch(self, namespace: str | None, stop: Stop) -> None:
        """Watch a namespace, again and again until told to stop."""
        where, retries = namespace or "all namespaces", 0
        while not stop.is_set():
            begin = time.monotonic()
            try:
                await self._watch_once(namespace, stop)
            except Exception as error:  # whatever kopf or the API server has: the others go on
                retries = 0 if time.monotonic() - begin > WELL_SECONDS else retries
                pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(retries, 9), LONGEST_RETRY_SECONDS)
                retries += 1
                said = f"{type(error).__name__}: {next(iter(error.args), error)}"
                log.error(
                    "%s cannot be watched, jobs there are not looked after (%s); trying again in "
                    "%.0f s; where the API server answers: is the namespace there, and the "
                    "operator's role in it?",
                    where,
                    said,
                    pause,
                    extra={"reason": "NamespaceLost"},
                )
                self.reconciler.metrics.watches(where, is_well=False)
                await stop.pause(pause)

    async def _watch_once(self, namespace: str | None, stop: Stop) -> None:
        """Until told to stop, or until KubeRay's kind is there, or not there any more.

        Raises:
            Exception: it cannot be watched.
        """
        if not await asyncio.to_thread(knows, self.kube.kube, Kind.JOB, namespace):
            raise Invalid(f"this cluster does not know RLHFJobs: {ADVICE}")
        has_kuberay = await asyncio.to_thread(knows, self.kube.kube, Kind.CLUSTER, namespace)
        self._set_kuberay(namespace, has_kuberay)
        await self._list(namespace)  # what a job has is known before anything is decided about it
        ready = asyncio.Event()
        watch = Watch(namespace, self._handlers(has_kuberay), self.in_cluster)
        watching = asyncio.create_task(watch.run(ready.set))
        beside = [
            asyncio.create_task(stop.wait()),
            asyncio.create_task(self._await_kuberay(namespace, not has_kuberay)),
            asyncio.create_task(self._follow_up(namespace, ready)),
        ]
        try:
            await asyncio.wait({watching, *beside[:2]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in beside:
                task.cancel()
            watch.end()
            outcomes = await asyncio.gather(*beside, return_exceptions=True)
        await watching
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _handlers(self, has_kuberay: bool) -> dict[Kind, Handler]:
        jobs_and_pods: dict[Kind, Handler] = {Kind.JOB: self.on_job, Kind.POD: self.on_pod}
        return jobs_and_pods | ({Kind.CLUSTER: self.on_cluster} if has_kuberay else {})

    def _set_kuberay(self, namespace: str | None, is_known: bool) -> None:
        self.reconciler.observer.has_kuberay = is_known
        if not is_known:
            log.error(
                "this cluster does not know RayClusters: install KubeRay %s or newer; jobs wait",
                KUBERAY,
                extra={"reason": "KubeRayMissing"},
            )
            for key in self.kube.forget_all(Kind.CLUSTER, namespace):
                self.queue.add(key)

    async def _await_kuberay(self, namespace: str | None, is_known: bool) -> None:
        """Until its kind is known, or is not known any more."""
        while True:
            await asyncio.sleep(PING_SECONDS / 2)
            try:
                if (
                    await asyncio.to_thread(knows, self.kube.kube, Kind.CLUSTER, namespace)
                    is is_known
                ):
                    return
            except KubeError as error:
                log.warning("Kubernetes does not answer: %s", error)

    async def on_job(self, event: Event) -> None:
        """An RLHFJob is there, is other than before, or is gone."""
        self._note_listed(event)
        type, found = event["type"], event["object"]
        metadata = found["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if type == GONE:
            self._seen.pop(key, None)
            self.kube.drop(Kind.JOB, found)
            self.queue.add(key)
            return
        self.kube.put(Kind.JOB, found)
        names = ("uid", "generation", "deletionTimestamp", "labels", "annotations")
        digest = hash(str([metadata.get(name) for name in names]))
        is_news = self._seen.get(key) != digest
        self._seen[key] = digest
        if type is None and is_settled(found):
            metrics = self.reconciler.metrics
            metrics.show_job(*key, read_status(found.get("status")), self.reconciler.now())
        elif is_news or type is None:  # else it was the operator's own write
            self.queue.add(key)

    async def on_cluster(self, event: Event) -> None:
        """A RayCluster that was made for a job has changed."""
        self._on_child(Kind.CLUSTER, event)

    async def on_pod(self, event: Event) -> None:
        """A pod of a job has changed; what killed it is not to be read later."""
        problem = told_problem(parse_pod(event["object"]))
        key = job_of(Kind.POD, event["object"]["metadata"])
        if key and problem and problem.outlives_its_pod and event["type"] != GONE:
            self.reconciler.observer.remember(key, problem)
        self._on_child(Kind.POD, event)

    def _on_child(self, kind: Kind, event: Event) -> None:
        self._note_listed(event)
        found = event["object"]
        (self.kube.drop if event["type"] == GONE else self.kube.put)(kind, found)
        key = job_of(kind, found["metadata"])
        if key is not None:
            self.queue.add(key)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._ping_once()

    async def _ping_once(self) -> None:
        try:
            await asyncio.to_thread(self.kube.ping)
        except KubeError as error:
            log.warning("Kubernetes does not answer: %s", error)

    async def _resync(self) -> None:
        """What was deleted while a watch began anew, nobody tells."""
        while True:
            await self._until_due()
            self._listed = None
            self.reconciler.metrics.forget_ended(self.reconciler.now())
            for namespace in self._places():
                try:
                    await self._list(namespace)
                except KubeError as error:
                    log.warning("%s cannot be listed: %s", namespace or "all namespaces", error)
                    self._listed = time.monotonic()  # it is tried again soon

    async def _until_due(self) -> None:
        """Until all is to be listed again: now and then, soon after a watch has begun anew, and at
        once when Kubernetes, which was away, answers again."""
        was_away = False
        for _ in range(int(RESYNC_SECONDS / CHECK_SECONDS)):
            await asyncio.sleep(CHECK_SECONDS)
            if self.kube.is_away:
                was_away = True
                await self._ping_once()
            if was_away and not self.kube.is_away:
                return
            if self._listed is not None and time.monotonic() - self._listed > AFRESH_SECONDS:
                return

    def _note_listed(self, event: Event) -> None:
        if event["type"] is None:
            self._listed = time.monotonic()

    async def _list(self, namespace: str | None) -> None:
        """Compare what is remembered with what is there, jobs last; what differs is looked at.

        Raises:
            KubeError: it cannot be listed.
        """
        changed: set[Key] = set()
        for kind in reversed(WATCHED):
            if kind is Kind.CLUSTER and not self.reconciler.observer.has_kuberay:
                continue
            seen = tuple(self._seen) if kind is Kind.JOB else ()
            found = await asyncio.to_thread(self.kube.resync, kind, namespace, seen)
            changed |= found.changed
            for key in found.gone:
                self._seen.pop(key, None)
        for key in changed:
            self.queue.add(key)

    async def _follow_up(self, namespace: str | None, ready: asyncio.Event) -> None:
        """When a watch has begun: tell it, and find what was deleted just before that."""
        await ready.wait()
        self.is_started = True
        where = namespace or "all namespaces"
        self.reconciler.metrics.watches(where, is_well=True)
        log.info("watching %s", where)
        await asyncio.sleep(SETTLED_SECONDS)
        try:
            await self._list(namespace)
        except KubeError as error:
            log.warning("%s cannot be listed: %s", where, error)
