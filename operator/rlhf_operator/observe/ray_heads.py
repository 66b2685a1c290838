"""Requests to the heads of jobs: many at a time, each with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rlhf_api.on_cluster import driver_command
from rlhf_api.report import StatusReport
from rlhf_api.status import ClusterStatus, DriverStatus
from rlhf_operator.apply.build.owned_objects import token
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.clients.cached_kube import Key
from rlhf_operator.clients.fair_semaphore import FairSemaphore
from rlhf_operator.clients.head.addresses import HeadPod
from rlhf_operator.clients.head.protocol import Head, HeadRefused, HeadUnreachable, Submission
from rlhf_operator.decide.actions import (
    AcknowledgeReport,
    HeadAction,
    StopDriver,
    SubmitDriver,
)
from rlhf_operator.decide.observed import (
    HeadState,
    Observed,
    ObservedHead,
    ObservedJob,
    ObservedPod,
)
from rlhf_operator.decide.predicates import FINAL_PHASES
from rlhf_operator.identity import Identity
from rlhf_operator.observe.head_durations import HeadDurations

MAX_CONCURRENT_REQUESTS = 256
REPORT_SECONDS = 5.0
"""Time limit of the driver's report, within HEAD_SECONDS."""
HEAD_SECONDS = 15.0
"""Time limit of all requests to a head in one reconcile."""


@dataclass
class RayHeads:
    """The heads of all jobs. For one event loop."""

    identity: Identity
    """Tokens of clusters derive from its key."""
    connect: Callable[[HeadPod, str], Head]
    """Returns the client of a head, by its pod and token."""
    clock: Callable[[], float] = time.monotonic
    seconds: float = HEAD_SECONDS
    _durations: HeadDurations = field(init=False)
    _limit: FairSemaphore = field(default_factory=lambda: FairSemaphore(MAX_CONCURRENT_REQUESTS))

    def __post_init__(self) -> None:
        self._durations = HeadDurations(self.clock)

    async def observe(self, key: Key, observed: Observed) -> Observed:
        """Return what was observed of a job, with its head's answer."""
        head = ObservedHead()
        pod = _pod_to_ask(observed)
        if pod is not None:
            try:
                async with (
                    self._limit.acquire(observed.job.namespace),
                    asyncio.timeout(self.seconds),
                ):
                    head = await self._ask(observed, pod)
            except (HeadUnreachable, TimeoutError) as error:
                head = ObservedHead(HeadState.UNREACHABLE, str(error) or self._too_slow)
            except HeadRefused as error:
                head = ObservedHead(HeadState.REFUSED, str(error))
        return observed.with_head(self._durations.measure(key, observed, head))

    async def perform(self, observed: Observed, action: HeadAction) -> None:
        """Send one action to a job's head.

        Raises:
            HeadUnreachable, HeadRefused: the head has not confirmed it.
        """
        cluster = observed.job.status.cluster
        assert cluster is not None, "drivers live on clusters"
        pod = observed.head_pod(cluster.name)
        if pod is None:
            raise HeadUnreachable(f"the cluster {cluster.name} has no head pod at the moment")
        head = self._connect(observed.job, cluster.name, pod)
        try:
            async with (
                self._limit.acquire(observed.job.namespace),
                asyncio.timeout(self.seconds),
            ):
                match action:
                    case SubmitDriver(submission):
                        await head.submit(submission, driver_command(submission), {})
                    case StopDriver(submission):
                        await head.stop(submission)
                    case AcknowledgeReport(submission, sequence):
                        await head.acknowledge(submission, sequence)
        except TimeoutError:
            raise HeadUnreachable(self._too_slow) from None

    def forget(self, key: Key) -> None:
        """Drop the state of a deleted job."""
        self._durations.forget(key)

    @property
    def _too_slow(self) -> str:
        return f"the head did not answer within {self.seconds:g} s"

    def _connect(self, job: ObservedJob, cluster: str, pod: ObservedPod) -> Head:
        bearer = token(self.identity.key, Owner(job.namespace, job.name, job.uid))
        return self.connect(HeadPod(job.namespace, cluster, pod.name, pod.address), bearer)

    async def _ask(self, observed: Observed, pod: ObservedPod) -> ObservedHead:
        cluster, driver = observed.job.status.cluster, observed.job.status.driver
        assert cluster is not None
        head = self._connect(observed.job, cluster.name, pod)
        submissions = await head.submissions()
        # Without a running driver nobody serves a report.
        if driver is None or driver.has_ended:
            return ObservedHead(HeadState.ANSWERED, "", submissions)
        own = next((entry for entry in submissions if entry.id == driver.submission_id), None)
        return ObservedHead(HeadState.ANSWERED, "", submissions, await _report(head, own))


def _pod_to_ask(observed: Observed) -> ObservedPod | None:
    """Return the head's pod. None: there is none, or nothing to ask."""
    status = observed.job.status
    has_driver = status.driver is not None and not status.driver.has_ended
    is_over = status.phase in FINAL_PHASES and not has_driver
    if status.cluster is None or observed.other_release is not None or is_over:
        return None
    return _ready_head(observed, status.cluster, status.driver if has_driver else None)


def _ready_head(
    observed: Observed, status: ClusterStatus, driver: DriverStatus | None
) -> ObservedPod | None:
    cluster, pod = observed.cluster(status.name), observed.head_pod(status.name)
    if cluster is None or cluster.is_suspended or not cluster.is_owned:
        return None
    if pod is None or not pod.is_ready:
        return None
    # A running driver lives on the very head that it was submitted to.
    return pod if driver is None or pod.uid == status.head_pod_uid else None


async def _report(head: Head, submission: Submission | None) -> StatusReport | None:
    # A driver that does not answer may still run: Ray's state of the submission decides.
    if submission is None:
        return None
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            if submission.state.has_ended:
                return await head.final_report(submission.id)
            return await head.report()
    except (HeadUnreachable, TimeoutError):
        return None
