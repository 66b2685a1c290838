"""One look at a job: observe, decide, write the status, act."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from rlhf_api.spec.job import API_VERSION, KIND
from rlhf_api.status import RLHFJobStatus
from rlhf_kube.kinds import Kind
from rlhf_operator.apply.performer import Performer
from rlhf_operator.clients.head.protocol import HeadRefused, HeadUnreachable
from rlhf_operator.clients.kube.cached import CachedKube, Key
from rlhf_operator.clients.kube.protocol import Conflict, Forbidden, Invalid, KubeError
from rlhf_operator.decide.actions import HeadAction, KubeAction, Note, RestoreCompanions
from rlhf_operator.decide.api_errors import with_trouble
from rlhf_operator.decide.draft import Decision
from rlhf_operator.decide.observed import JobSeen, Observed
from rlhf_operator.decide.reconcile import reconcile
from rlhf_operator.decide.settings import Settings
from rlhf_operator.observe.observer import Observer
from rlhf_operator.observe.ray_heads import Heads
from rlhf_operator.process.metrics import Metrics

log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """The time, for everything that is written."""
    return datetime.now(UTC)


Function = Callable[..., Any]


class InThread(Protocol):
    """Where a function runs that waits for Kubernetes."""

    async def __call__(self, namespace: str, function: Function, *arguments: Any) -> Any:
        """What it returns, when it is the namespace's turn."""
        ...


@dataclass
class Reconciler:
    """Looks at one job at a time, whenever somebody says so. Knows nothing that is not written.

    While a head is waited for no thread is.
    """

    kube: CachedKube
    observer: Observer
    heads: Heads
    performer: Performer
    metrics: Metrics
    in_thread: InThread
    settings: Settings = field(default_factory=Settings)
    now: Callable[[], datetime] = utc_now

    async def look(self, key: Key, planned: Callable[[], None]) -> float | None:
        """Bring a job one step on.

        Args:
            planned: called when a plan that is not there yet has been made.

        Returns:
            Seconds until the next look; None: when an event comes.

        Raises:
            KubeError: something could not be read or written; look again later.
        """
        try:
            return await self._look(key, planned)
        except Conflict:  # what is remembered of it is old
            self.kube.forget_job(*key)
            raise

    async def _look(self, key: Key, planned: Callable[[], None]) -> float | None:
        namespace = key[0]
        seen: Observed | None = await self.in_thread(namespace, self.observer.observe, key, planned)
        if seen is None:
            self.metrics.forget_job(*key)
            self.observer.forget(key)
            self.heads.forget(key)
            return None
        seen = await self.heads.ask(key, seen)
        decision: Decision = await self.in_thread(namespace, self._decide, key, seen)
        return await self._act(key, seen, decision)

    def _decide(self, key: Key, seen: Observed) -> Decision:
        """The decision, which is in the status and told to people before anything is done."""
        decision = reconcile(seen, self.settings, self.now())
        if decision.status != seen.job.status:
            self._write(seen.job, decision.status, seen.job.version)
        for restart in decision.restarts:
            self.metrics.restarted(restart.kind, restart.reason, restart.number)
        self.metrics.show_job(*key, decision.status, self.now())
        for note in decision.notes:
            self._tell(key, seen.job, note)
        return decision

    def _tell(self, key: Key, job: JobSeen, note: Note) -> None:
        """Nothing waits for an event that cannot be written."""
        extra = {"job": "/".join(key), "reason": note.reason}
        log.info("%s", note.message, extra=extra)
        try:
            self.performer.tell(job, note)
        except KubeError as error:
            log.warning("no event could be written: %s", error, extra=extra)

    def _write(self, job: JobSeen, status: RLHFJobStatus, version: str) -> None:
        """Nothing is done on the word of a status that another operator has replaced."""
        self.kube.apply_status(status_manifest(job, status, version))

    async def _act(self, key: Key, seen: Observed, decision: Decision) -> float | None:
        """Take the actions in order; what fails is tried again at the next look."""
        if not decision.actions:
            return decision.again_after
        now = seen.with_status(decision.status)
        try:
            for action in decision.actions:
                if isinstance(action, HeadAction):
                    await self.heads.perform(now, action)
                else:
                    await self.in_thread(key[0], self._perform, key, now, action)
        except (HeadUnreachable, HeadRefused) as error:
            log.warning("%s", error, extra={"job": "/".join(key), "reason": "HeadUnreachable"})
            return self.settings.poll_seconds
        return decision.again_after

    def _perform(self, key: Key, seen: Observed, action: KubeAction) -> None:
        if isinstance(action, RestoreCompanions):
            self._restore(key, seen, action)
            return
        try:
            self.performer.perform(seen.job, action)
        except (Forbidden, Invalid) as error:
            told = with_trouble(seen, action, error.reason, str(error), self.settings, self.now())
            if told != seen.job.status:
                self._tell_trouble(key, seen.job, told)
            raise

    def _restore(self, key: Key, seen: Observed, action: RestoreCompanions) -> None:
        """A job that runs does not stand still because something beside it is refused."""
        try:
            self.performer.perform(seen.job, action)
        except KubeError as error:
            self.observer.note_refused(key)
            if not isinstance(error, Forbidden | Invalid):
                raise
            self.metrics.reconcile_errors.labels(error.reason).inc()
            extra = {"job": "/".join(key), "reason": error.reason}
            log.warning("what stands beside the cluster cannot be made: %s", error, extra=extra)

    def _tell_trouble(self, key: Key, job: JobSeen, status: RLHFJobStatus) -> None:
        """Actions before the one that failed have changed the job: only its uid is as it was."""
        self.kube.forget_job(job.namespace, job.name)
        raw = self.kube.get(Kind.JOB, job.namespace, job.name)
        if raw is not None and raw["metadata"]["uid"] == job.uid:
            self._write(job, status, raw["metadata"]["resourceVersion"])


def status_manifest(job: JobSeen, status: RLHFJobStatus, version: str) -> Mapping[str, Any]:
    """The whole status, for this very job only.

    Args:
        version: the job's resourceVersion: it must be as it was when it was read.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": version,
        },
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
