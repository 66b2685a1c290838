"""The operator's process: kopf's events lead to looks at jobs.

kopf lists and watches; it writes nothing. An event only says which job to look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kopf

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_operator.config import OperatorConfig
from rlhf_operator.kube.protocol import Kind, KubeError
from rlhf_operator.observe import Key
from rlhf_operator.parse import pod_problem
from rlhf_operator.queue import JobQueue
from rlhf_operator.reconciler import Reconciler
from rlhf_operator.workers import LOOKS_AT_ONCE, Workers

log = logging.getLogger(__name__)
PING_SECONDS = 60.0
"""From one sign of life of Kubernetes to the next, when nothing else is asked."""
GONE = "DELETED"
"""Also what a watch of labelled objects tells when an object loses the label, with the object as it
was before."""
CHILDREN = (Kind.CLUSTER, Kind.POD)
"""Kinds of which only the jobs' own are asked for."""


@dataclass
class App:
    """Everything that lives in the event loop."""

    config: OperatorConfig
    reconciler: Reconciler
    in_cluster: bool
    """Whether this process is a pod, with a service account's token."""
    queue: JobQueue = field(default_factory=JobQueue)
    is_started: bool = False
    """Whether its watches were set going; they may have listed nothing yet."""
    stands_by: bool = False
    """Whether another replica acts, and this one is there to take over."""
    _seen: dict[Key, object] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch and work until told to stop, or until a part dies: the process is started again.

        Raises:
            Exception: what the part died of.
        """
        registry = self._registry()
        ready = asyncio.Event()
        workers = Workers(self.queue, self.reconciler, self.reconciler.metrics)
        loops = [
            asyncio.create_task(workers.run(LOOKS_AT_ONCE)),
            asyncio.create_task(self._ping()),
            asyncio.create_task(self._tell_ready(ready)),
        ]
        for task in loops:
            task.add_done_callback(lambda ended: stop.set() if _has_died(ended) else None)
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(),
                standalone=True,
                clusterwide=not self.config.namespaces,
                namespaces=self.config.namespaces,
                ready_flag=ready,
                stop_flag=stop,
            )
        finally:
            for task in loops:
                task.cancel()
            outcomes = await asyncio.gather(*loops, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        login = kopf.login_with_service_account if self.in_cluster else kopf.login_with_kubeconfig
        kopf.on.login(registry=registry)(login)
        job, cluster = Kind.JOB.value, Kind.CLUSTER.value
        labels = {JOB_LABEL: kopf.PRESENT}  # the handlers read it
        kopf.on.event(job.group, job.version, job.plural, registry=registry)(self.on_job)
        kopf.on.event(
            cluster.group, cluster.version, cluster.plural, labels=labels, registry=registry
        )(self.on_child)
        kopf.on.event("v1", "pods", labels=labels, registry=registry)(self.on_pod)
        return registry

    async def on_job(self, type: str | None, body: kopf.Body, **_: Any) -> None:
        """An RLHFJob is there, is other than before, or is gone."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        names = ("uid", "generation", "deletionTimestamp", "labels", "annotations")
        looks = {name: metadata.get(name) for name in names}
        if type != GONE and self._seen.get(key) == looks and type is not None:
            return  # it was the operator's own write
        if type == GONE:
            self._seen.pop(key, None)
        else:
            self._seen[key] = looks
        self.queue.add(key, changed=True)

    async def on_child(self, body: kopf.Body, **_: Any) -> None:
        """Something that was made for a job has changed."""
        self.queue.add(_job_of(body["metadata"]), changed=True)

    async def on_pod(self, type: str | None, body: kopf.Body, **_: Any) -> None:
        """A pod of a job has changed; what killed it is not to be read later."""
        key = _job_of(body["metadata"])
        problem = pod_problem(body)
        if problem is not None and problem.outlives_its_pod and type != GONE:
            self.reconciler.observer.remember(key, problem)
        self.queue.add(key, changed=True)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            try:
                await asyncio.to_thread(self.reconciler.kube.ping)
            except KubeError as error:
                log.warning("Kubernetes does not answer: %s", error)

    async def _tell_ready(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self.is_started = True
        log.info("watching %s", ", ".join(self.config.namespaces) or "all namespaces")


def _has_died(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is not None


def _job_of(metadata: Mapping[str, Any]) -> Key:
    return metadata["namespace"], metadata["labels"][JOB_LABEL]


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # the operator writes its own events, few and readable
    settings.scanning.disabled = True  # needs no right to watch kinds and namespaces
    settings.watching.server_timeout = 60  # the API server takes whole seconds only
    settings.networking.request_timeout = 30.0
    for kind in CHILDREN:  # a cluster's other pods are neither sent nor kept
        place = kind.value
        settings.watching.label_selectors[place.group, place.version, place.plural] = JOB_LABEL
    return settings
