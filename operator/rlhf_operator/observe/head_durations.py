"""Durations of a head's state: since its last answer, refusal, and new report.

They are kept in memory. A new process starts at zero, as it has asked nobody before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rlhf_operator.clients.cached_kube import Key
from rlhf_operator.decide.observed import HeadState, Observed, ObservedHead

RECENT_ANSWER_SECONDS = 60.0
"""A head that has answered within this time proves that the operator can reach heads."""


@dataclass
class _HeadRecord:
    """Times of one head pod, by the clock of `HeadDurations`."""

    pod: str | None
    unanswered_since: float
    """Time of its last answer, or when it could first be asked."""
    answered: float | None = None
    """Time of its last answer. None: it never answered."""
    not_refused: float = 0.0
    """Time of its last outcome other than a refusal, or when it was first asked."""
    submission: str | None = None
    """Id of the driver that is followed."""
    heartbeat: int | None = None
    """Interval of reports that the driver has promised, in seconds."""
    report: tuple[str, int] | None = None
    """Submission and sequence of the driver's last report."""
    reported: float = 0.0
    """Time when that report was first seen."""


@dataclass
class HeadDurations:
    """Measures how long the head of every job has been in its state. For one event loop."""

    clock: Callable[[], float]
    _records: dict[Key, _HeadRecord] = field(default_factory=dict)

    def measure(self, key: Key, observed: Observed, head: ObservedHead) -> ObservedHead:
        """Return the head with the durations of its state."""
        now = self.clock()
        status = observed.job.status.cluster
        cluster = observed.cluster(status.name) if status else None
        if status is None or cluster is None or cluster.is_suspended:
            self.forget(key)
            return head
        pod = observed.head_pod(status.name)
        uid = pod.uid if pod else None
        record = self._records.get(key)
        # Another head pod is another process: its durations begin now.
        if record is None or record.pod != uid:
            record = self._records[key] = _HeadRecord(uid, now, not_refused=now)
        if head.state is HeadState.ANSWERED:
            record.unanswered_since = record.answered = now
        elif pod is None or not (pod.is_ready or _has_driver(observed)):
            record.unanswered_since = now  # no process could have answered yet
        is_refused = head.state is HeadState.REFUSED
        if not is_refused:
            record.not_refused = now
        _record_report(record, observed, head, now)
        return replace(
            head,
            refused_seconds=now - record.not_refused,
            # A refusal is an answer: the head is reachable.
            unanswered_seconds=0.0 if is_refused else now - record.unanswered_since,
            unchanged_seconds=now - record.reported if record.report else 0.0,
            heartbeat_seconds=record.heartbeat,
            others_answer=self._others_answer(key, now),
        )

    def forget(self, key: Key) -> None:
        """Drop the record of a job without a head."""
        self._records.pop(key, None)

    def _others_answer(self, key: Key, now: float) -> bool:
        answers = [
            record.answered
            for other, record in self._records.items()
            if other != key and record.answered is not None
        ]
        return now - max(answers, default=float("-inf")) <= RECENT_ANSWER_SECONDS


def _record_report(record: _HeadRecord, observed: Observed, head: ObservedHead, now: float) -> None:
    driver = observed.job.status.driver
    submission = driver.submission_id if driver else None
    if submission != record.submission:
        record.submission, record.report, record.heartbeat = submission, None, None
    report = head.report
    if report is None or report.submission_id != submission:
        return
    record.heartbeat = None if report.final else report.heartbeat_seconds
    newest = (report.submission_id, report.sequence)
    if newest != record.report:
        record.report, record.reported = newest, now


def _has_driver(observed: Observed) -> bool:
    driver = observed.job.status.driver
    return driver is not None and not driver.has_ended
