"""Jobs as they change: listed once, then watched, over broken connections and restarted servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from rlhf_cli.cluster.client import Cluster, WatchExpired
from rlhf_cli.cluster.errors import ClusterUnreachable
from rlhf_cli.cluster.jobs import Job, read_job
from rlhf_kube.kinds import Kind

Jobs = Mapping[tuple[str, str], Job]
"""By namespace and name."""

PATIENCE_SECONDS: Final = 120.0
"""How long a cluster may be out of reach before that is told."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 15.0


class Follower:
    """Follows the jobs of a namespace."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str | None,
        names: Collection[str] = (),
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            namespace: whose jobs; None for all.
            names: only these; empty for all.
            pause: waits so many seconds.
            now: a clock in seconds.
        """
        self._cluster, self._namespace = cluster, namespace
        self._names = frozenset(names)
        self._fields = f"metadata.name={min(names)}" if len(self._names) == 1 else ""
        self._pause, self._now = pause, now
        self._jobs: dict[tuple[str, str], Job] = {}

    def __iter__(self) -> Iterator[Jobs]:
        """The jobs, again after each change. It does not end by itself.

        Raises:
            ClusterUnreachable: the cluster did not answer for two minutes.
        """
        lost: float | None = None
        wait = FIRST_PAUSE_SECONDS
        while True:
            try:
                for jobs in self._until_interrupted():
                    lost, wait = None, FIRST_PAUSE_SECONDS
                    yield jobs
            except ClusterUnreachable:
                lost = self._now() if lost is None else lost
                if self._now() - lost > PATIENCE_SECONDS:
                    raise
                self._pause(wait)
                wait = min(2 * wait, LONGEST_PAUSE_SECONDS)

    def _until_interrupted(self) -> Iterator[Jobs]:
        listing = self._cluster.list(Kind.JOB, self._namespace, fields=self._fields)
        found = [read_job(each) for each in listing.items]
        self._jobs = {(job.namespace, job.name): job for job in found if self._is_meant(job)}
        yield dict(self._jobs)
        version = listing.version
        while True:
            begun = self._now()
            try:
                for change in self._cluster.watch(Kind.JOB, self._namespace, version, self._fields):
                    version = change.object["metadata"]["resourceVersion"]
                    if self._take(read_job(change.object), change.is_deletion):
                        yield dict(self._jobs)
            except WatchExpired:
                return
            if self._now() - begun < FIRST_PAUSE_SECONDS:  # some proxies keep no answer open
                self._pause(FIRST_PAUSE_SECONDS)

    def _take(self, job: Job, is_deletion: bool) -> bool:
        if not self._is_meant(job):
            return False
        if is_deletion:
            self._jobs.pop((job.namespace, job.name), None)
        else:
            self._jobs[(job.namespace, job.name)] = job
        return True

    def _is_meant(self, job: Job) -> bool:
        return not self._names or job.name in self._names
