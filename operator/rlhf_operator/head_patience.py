"""For how long heads have been as they are: kept in memory, as an operator that was away has asked
nobody meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rlhf_operator.decide.observed import HeadSeen, HeadState, Observed
from rlhf_operator.kube.cached import Key

JUST_NOW_SECONDS = 60.0
"""A head that has answered within so long shows that the operator can reach heads."""


@dataclass
class _Streak:
    """What one head has been like."""

    pod: str | None
    answered: float
    """When it last answered, or was asked first."""
    not_refused: float
    """When it last did not refuse, or was asked first."""
    told: tuple[str, int] | None = None
    """Submission and sequence of its report."""
    changed: float = 0.0
    """When that came."""


@dataclass
class HeadPatience:
    """Remembers when each job's head last answered, and last told something new. For any number of
    threads, each job being looked at by one at a time."""

    clock: Callable[[], float]
    _streaks: dict[Key, _Streak] = field(default_factory=dict)

    def wait(self, key: Key, seen: Observed, head: HeadSeen) -> HeadSeen:
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
            streak = self._streaks[key] = _Streak(uid, now, now)
        if head.state is HeadState.ANSWERED:
            streak.answered = now
        if head.state is not HeadState.REFUSED:
            streak.not_refused = now
        told = (head.report.submission_id, head.report.sequence) if head.report else None
        if told != streak.told:
            streak.told, streak.changed = told, now
        others = [each.answered for other, each in list(self._streaks.items()) if other != key]
        return replace(
            head,
            refused_seconds=now - streak.not_refused,
            silent_seconds=now - streak.answered if head.state is not HeadState.REFUSED else 0.0,
            still_seconds=now - streak.changed if told else 0.0,
            others_answer=now - max(others, default=float("-inf")) <= JUST_NOW_SECONDS,
        )

    def forget(self, key: Key) -> None:
        """The job has no head."""
        self._streaks.pop(key, None)
