"""Asks the heads of jobs, and tells them what to do: many at a time, each for so long only."""

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
from rlhf_operator.clients.fair_semaphore import Turns
from rlhf_operator.clients.head.addresses import HeadPlace
from rlhf_operator.clients.head.protocol import Head, HeadRefused, HeadUnreachable, Submission
from rlhf_operator.clients.kube.cached import Key
from rlhf_operator.decide.actions import Acknowledge, HeadAction, Stop, Submit
from rlhf_operator.decide.endings import ENDS
from rlhf_operator.decide.observed import HeadSeen, HeadState, JobSeen, Observed, PodSeen
from rlhf_operator.identity import Identity
from rlhf_operator.observe.head_durations import HeadPatience

ASKED_AT_ONCE = 256
REPORT_SECONDS = 5.0
"""Of these for the driver's report."""
HEAD_SECONDS = 15.0
"""For everything that one look asks of a head, or tells it."""


@dataclass
class Heads:
    """The heads of all jobs. For one event loop."""

    identity: Identity
    """Of this operator: tokens are made from its key."""
    dial: Callable[[HeadPlace, str], Head]
    """From the place of a head, and its token, to the head."""
    clock: Callable[[], float] = time.monotonic
    seconds: float = HEAD_SECONDS
    _patience: HeadPatience = field(init=False)
    _turns: Turns = field(default_factory=lambda: Turns(ASKED_AT_ONCE))

    def __post_init__(self) -> None:
        self._patience = HeadPatience(self.clock)

    async def ask(self, key: Key, seen: Observed) -> Observed:
        """What was seen of a job, with what its head says."""
        head = HeadSeen()
        pod = _pod_to_ask(seen)
        if pod is not None:
            try:
                async with self._turns.turn(seen.job.namespace), asyncio.timeout(self.seconds):
                    head = await self._ask(seen, pod)
            except (HeadUnreachable, TimeoutError) as error:
                head = HeadSeen(HeadState.UNREACHABLE, str(error) or self._too_slow)
            except HeadRefused as error:
                head = HeadSeen(HeadState.REFUSED, str(error))
        return seen.with_head(self._patience.with_durations(key, seen, head))

    async def perform(self, seen: Observed, action: HeadAction) -> None:
        """Tell a job's head what to do.

        Raises:
            HeadUnreachable, HeadRefused: it was not told, or has not understood.
        """
        cluster = seen.job.status.cluster
        assert cluster is not None, "drivers live on clusters"
        pod = seen.head_pod(cluster.name)
        if pod is None:
            raise HeadUnreachable(f"the cluster {cluster.name} has no head just now")
        head = self._head(seen.job, cluster.name, pod)
        try:
            async with self._turns.turn(seen.job.namespace), asyncio.timeout(self.seconds):
                match action:
                    case Submit(submission):
                        await head.submit(submission, driver_command(submission), {})
                    case Stop(submission):
                        await head.stop(submission)
                    case Acknowledge(submission, sequence):
                        await head.acknowledge(submission, sequence)
        except TimeoutError:
            raise HeadUnreachable(self._too_slow) from None

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._patience.forget(key)

    @property
    def _too_slow(self) -> str:
        return f"the head takes longer than {self.seconds:g} s"

    def _head(self, job: JobSeen, cluster: str, pod: PodSeen) -> Head:
        own = token(self.identity.key, Owner(job.namespace, job.name, job.uid))
        return self.dial(HeadPlace(job.namespace, cluster, pod.name, pod.address), own)

    async def _ask(self, seen: Observed, pod: PodSeen) -> HeadSeen:
        cluster, driver = seen.job.status.cluster, seen.job.status.driver
        assert cluster is not None
        head = self._head(seen.job, cluster.name, pod)
        submissions = await head.submissions()
        if driver is None or driver.has_ended:
            return HeadSeen(HeadState.ANSWERED, "", submissions)
        own = next((each for each in submissions if each.id == driver.submission_id), None)
        return HeadSeen(HeadState.ANSWERED, "", submissions, await _report(head, own))


def _pod_to_ask(seen: Observed) -> PodSeen | None:
    """The head to ask; None: there is none, or nothing to ask for."""
    status = seen.job.status
    has_driver = status.driver is not None and not status.driver.has_ended
    is_over = status.phase in ENDS and not has_driver
    if status.cluster is None or seen.other_release is not None or is_over:
        return None
    return _ready_head(seen, status.cluster, status.driver if has_driver else None)


def _ready_head(
    seen: Observed, cluster: ClusterStatus, living: DriverStatus | None
) -> PodSeen | None:
    """The pod of the head; of a driver that lives, the very head that it lives on."""
    made, pod = seen.cluster(cluster.name), seen.head_pod(cluster.name)
    if made is None or made.is_suspended or not made.is_ours or pod is None or not pod.is_ready:
        return None
    return pod if living is None or pod.uid == cluster.head_pod_uid else None


async def _report(head: Head, own: Submission | None) -> StatusReport | None:
    """A driver that does not answer may live: Ray has, and tells whether it does."""
    if own is None:
        return None
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            return await (head.final_report(own.id) if own.state.has_ended else head.report())
    except (HeadUnreachable, TimeoutError):
        return None
