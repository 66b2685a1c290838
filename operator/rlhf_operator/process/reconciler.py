"""One reconcile of a job: observe, decide, write the status, perform the actions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.status import RLHFJobStatus
from rlhf_kube.errors import (
    Conflict,
    KubeError,
    NotFound,
    NotInstalled,
    Refused,
    UnknownField,
)
from rlhf_kube.kinds import Kind
from rlhf_operator.apply.event_limit import EventLimit
from rlhf_operator.apply.performer import Performer
from rlhf_operator.clients.cached_kube import CachedKube, Key
from rlhf_operator.clients.head.protocol import HeadRefused, HeadUnreachable
from rlhf_operator.decide.actions import HeadAction, JobEvent, KubeAction, RestoreOwnedObjects
from rlhf_operator.decide.api_errors import operator_reason, record_refused_action
from rlhf_operator.decide.decision import Decision
from rlhf_operator.decide.observed import Observed, ObservedJob
from rlhf_operator.decide.reconcile import reconcile
from rlhf_operator.decide.settings import Settings
from rlhf_operator.observe.observer import Observer
from rlhf_operator.observe.ray_heads import RayHeads
from rlhf_operator.process.leadership import NotLeading
from rlhf_operator.process.logs import job_fields
from rlhf_operator.process.metrics import Metrics, utc_now

log = logging.getLogger(__name__)


Function = Callable[..., Any]


class InThread(Protocol):
    """Runs functions that wait for Kubernetes outside of the event loop."""

    async def __call__(self, namespace: str, function: Function, *arguments: Any) -> Any:
        """Return the function's result; the namespaces take turns."""
        ...


@dataclass
class Reconciler:
    """Reconciles one job at a time. Without state besides caches: all state is in the cluster."""

    kube: CachedKube
    observer: Observer
    heads: RayHeads
    performer: Performer
    metrics: Metrics
    in_thread: InThread
    settings: Settings = field(default_factory=Settings)
    may_act: Callable[[], bool] = lambda: True
    """False while another replica may act."""
    now: Callable[[], datetime] = utc_now
    event_limit: EventLimit = field(default_factory=EventLimit)
    definition_problem: str = ""
    """Error of the last write of a status, if the definition of RLHFJob lacks one of its fields."""

    async def reconcile(self, key: Key, on_planned: Callable[[], None]) -> float | None:
        """Bring a job one step closer to its desired state.

        Args:
            on_planned: called when a plan that is not ready yet has been made.

        Returns:
            Seconds until the next reconcile. None: wait for an event.

        Raises:
            KubeError: a read or write failed; reconcile again later.
            NotLeading: another replica may act; nothing more was done.
        """
        self._require_leadership()
        try:
            return await self._reconcile(key, on_planned)
        # The cached version is stale, or its kind was deleted and all jobs with it.
        except (Conflict, NotFound, NotInstalled):
            self.kube.forget_job(*key)
            raise

    async def _reconcile(self, key: Key, on_planned: Callable[[], None]) -> float | None:
        namespace = key[0]
        observed: Observed | None = await self.in_thread(
            namespace, self.observer.observe, key, on_planned
        )
        if observed is None:
            self.metrics.jobs.forget_job(key)
            self.observer.forget(key)
            self.heads.forget(key)
            return None
        # Heads are asked in the event loop: a slow head does not block a thread.
        observed = await self.heads.observe(key, observed)
        decision: Decision = await self.in_thread(namespace, self._decide, key, observed)
        return await self._act(key, observed, decision)

    def _decide(self, key: Key, observed: Observed) -> Decision:
        decision = reconcile(observed, self.settings, self.now())
        self._require_leadership()
        # Before any action: with another operator's newer status the write is a conflict, and
        # nothing is done.
        if decision.status != observed.job.status:
            self._write(observed.job, decision.status, observed.job.resource_version)
        for restart in decision.restarts:
            self.metrics.count_restarts(restart.kind, restart.reason, restart.number)
        job = observed.job.job
        every_steps = 0 if job is None else job.spec.checkpoint.every_steps
        self.metrics.jobs.set_job(key, decision.status, every_steps)
        for event in decision.events:
            self._record_event(key, observed.job, decision.status, event)
        return decision

    def _require_leadership(self) -> None:
        # A look at a slow head may take longer than the Lease lasts.
        if not self.may_act():
            raise NotLeading

    def _record_event(
        self, key: Key, job: ObservedJob, status: RLHFJobStatus, event: JobEvent
    ) -> None:
        extra = job_fields(*key, status, event.reason)
        log.info("%s", event.message, extra=extra)
        if not self.event_limit.allows(job.uid, event.reason, self.now()):
            return
        try:
            self.performer.record_event(job, event)
        except KubeError as error:  # events are for people: a job does not wait for them
            log.warning("no event could be written: %s", error, extra=extra)

    def _write(self, job: ObservedJob, status: RLHFJobStatus, version: str) -> None:
        try:
            self.kube.apply_status(status_manifest(job, status, version))
        except UnknownField as error:
            self.definition_problem = str(error)
            raise
        self.definition_problem = ""

    async def _act(self, key: Key, observed: Observed, decision: Decision) -> float | None:
        """Perform the actions in order; what fails is tried again in the next reconcile."""
        if not decision.actions:
            return decision.requeue_after
        current = observed.with_status(decision.status)
        try:
            for action in decision.actions:
                self._require_leadership()
                if isinstance(action, HeadAction):
                    await self.heads.perform(current, action)
                else:
                    await self.in_thread(key[0], self._perform, key, current, action)
        except (HeadUnreachable, HeadRefused) as error:
            log.warning("%s", error, extra=job_fields(*key, decision.status, "HeadUnreachable"))
            return self.settings.poll_seconds
        return decision.requeue_after

    def _perform(self, key: Key, observed: Observed, action: KubeAction) -> None:
        if isinstance(action, RestoreOwnedObjects):
            self._restore(key, observed, action)
            return
        try:
            self.performer.perform(observed.job, action)
        except Refused as error:
            decision = record_refused_action(observed, action, error, self.settings, self.now())
            if decision.status != observed.job.status:
                self._write_refusal(observed.job, decision.status)
                for event in decision.events:
                    self._record_event(key, observed.job, decision.status, event)
            raise

    def _restore(self, key: Key, observed: Observed, action: RestoreOwnedObjects) -> None:
        try:
            self.performer.perform(observed.job, action)
        except KubeError as error:
            self.observer.record_refused(key)
            if not isinstance(error, Refused):
                raise
            # No error of the job: it trains on while an object beside it is refused.
            reason = operator_reason(error)
            self.metrics.reconcile_errors.labels(reason).inc()
            extra = job_fields(*key, observed.job.status, reason)
            log.warning("an object beside the cluster cannot be created: %s", error, extra=extra)

    def _write_refusal(self, job: ObservedJob, status: RLHFJobStatus) -> None:
        # Earlier actions of this reconcile have changed the job's resourceVersion: read it again,
        # and check only the uid.
        self.kube.forget_job(job.namespace, job.name)
        raw = self.kube.get(Kind.JOB, job.namespace, job.name)
        if raw is not None and raw["metadata"]["uid"] == job.uid:
            self._write(job, status, raw["metadata"]["resourceVersion"])


def status_manifest(job: ObservedJob, status: RLHFJobStatus, version: str) -> Mapping[str, Any]:
    """Return the manifest that applies a complete status.

    Args:
        version: the job's resourceVersion when it was read; another one makes a conflict.
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
