"""For how long heads have been as they are: kept in memory, as an operator that was away has asked
nobody meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rlhf_operator.clients.kube.cached import Key
from rlhf_operator.decide.observed import HeadSeen, HeadState, Observed

JUST_NOW_SECONDS = 60.0
"""A head that has answered within so long shows that the operator can reach heads."""


@dataclass
class _Streak:
    """What one head has been like."""

    pod: str | None
    silent_since: float
    """When it last answered, or could be asked first."""
    answered: float | None = None
    """When it last answered. None: it never did."""
    not_refused: float = 0.0
    """When it last did not refuse, or was asked first."""
    submission: str | None = None
    """The driver that is followed."""
    heartbeat: int | None = None
    """How often that has promised to tell something."""
    told: tuple[str, int] | None = None
    """Submission and sequence of its report."""
    changed: float = 0.0
    """When that came."""


@dataclass
class HeadPatience:
    """Remembers when each job's head last answered, and last told something new. For one event
    loop."""

    clock: Callable[[], float]
    _streaks: dict[Key, _Streak] = field(default_factory=dict)

    def with_durations(self, key: Key, seen: Observed, head: HeadSeen) -> HeadSeen:
        """What was seen of a job's head, with for how long it has been so."""
        now = self.clock()
        cluster = seen.job.status.cluster
        made = seen.cluster(cluster.name) if cluster else None
        if cluster is None or made is None or made.is_suspended:
            self.forget(key)
            return head
        pod = seen.head_pod(cluster.name)
        uid = pod.uid if pod else None
        streak = self._streaks.get(key)
        if streak is None or streak.pod != uid:
            streak = self._streaks[key] = _Streak(uid, now, not_refused=now)
        if head.state is HeadState.ANSWERED:
            streak.silent_since = streak.answered = now
        elif pod is None or not (pod.is_ready or _has_driver(seen)):
            streak.silent_since = now  # nobody could answer yet
        is_refused = head.state is HeadState.REFUSED
        if not is_refused:
            streak.not_refused = now
        driver = seen.job.status.driver
        submission = driver.submission_id if driver else None
        if submission != streak.submission:
            streak.submission, streak.told, streak.heartbeat = submission, None, None
        if head.report is not None and head.report.submission_id == submission:
            streak.heartbeat = None if head.report.final else head.report.heartbeat_seconds
            told = (head.report.submission_id, head.report.sequence)
            if told != streak.told:
                streak.told, streak.changed = told, now
        others = [
            each.answered
            for other, each in self._streaks.items()
            if other != key and each.answered is not None
        ]
        return replace(
            head,
            refused_seconds=now - streak.not_refused,
            silent_seconds=0.0 if is_refused else now - streak.silent_since,
            still_seconds=now - streak.changed if streak.told else 0.0,
            heartbeat_seconds=streak.heartbeat,
            others_answer=now - max(others, default=float("-inf")) <= JUST_NOW_SECONDS,
        )

    def forget(self, key: Key) -> None:
        """The job has no head."""
        self._streaks.pop(key, None)


def _has_driver(seen: Observed) -> bool:
    driver = seen.job.status.driver
    return driver is not None and not driver.has_ended
