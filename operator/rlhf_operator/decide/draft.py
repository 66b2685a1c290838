"""A decision while it is made: the next status, what to do, and when to look again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rlhf_api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    RLHFJobStatus,
)
from rlhf_operator.decide.actions import Action, Note
from rlhf_operator.decide.conditions import conditions_of
from rlhf_operator.decide.observed import Observed
from rlhf_operator.decide.settings import Settings

LONGEST_MESSAGE = 1024
"""Characters of a message; what comes from outside can be of any length."""


@dataclass(frozen=True)
class Decision:
    """What to do about a job. First the status is written, then the actions are taken in order."""

    status: RLHFJobStatus
    actions: tuple[Action, ...]
    notes: tuple[Note, ...]
    restarts: tuple[Restart, ...]
    """What is started again by it, for the metrics."""
    again_after: float | None
    """Seconds until the next look; None: only events lead to one."""


@dataclass(frozen=True)
class Restart:
    """Something is started again, or was."""

    kind: Literal["incarnations", "drivers", "clusters"]
    reason: str
    """What caused it."""
    number: int = 1


class Draft:
    """Collects a decision."""

    def __init__(self, seen: Observed, settings: Settings, now: datetime) -> None:
        self.seen = seen
        self.settings = settings
        self.now = now.astimezone(UTC).replace(microsecond=0)
        self.status: RLHFJobStatus = seen.job.status
        self.actions: list[Action] = []
        self._notes: list[Note] = []
        self._restarts: list[Restart] = []
        self._again: float | None = None

    def set(self, **fields: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def do(self, *actions: Action) -> None:
        """Ask for actions."""
        self.actions += actions

    def note(self, reason: str, message: str, is_warning: bool = False) -> None:
        """Tell people."""
        self._notes.append(Note(reason, _short(message), is_warning))

    def count(self, restart: Restart) -> None:
        """Tell the metrics."""
        self._restarts.append(restart)

    def look_again(self, seconds: float) -> None:
        """Look again so soon, or sooner."""
        seconds = max(0.0, seconds)
        self._again = seconds if self._again is None else min(self._again, seconds)

    @property
    def is_outdated(self) -> bool:
        """Whether what runs was made from another manifest than the job's now."""
        cluster = self.status.cluster
        if cluster is None or cluster.manifest_digest is None:
            return False
        return not self.seen.job.is_of(cluster.manifest_digest)

    def condition(self, type: ConditionType) -> Condition | None:
        """One condition as it stands."""
        return next((each for each in self.status.conditions if each.type is type), None)

    def seconds_since(self, time: datetime | None) -> float:
        """How long ago; 0 if never, or if the clock that wrote it is ahead of this one."""
        return 0.0 if time is None else max(0.0, (self.now - time).total_seconds())

    def conclude(
        self, type: ConditionType, status: ConditionStatus, reason: str, message: str
    ) -> None:
        """Set a condition; its time changes with its status only."""
        before = self.condition(type)
        same = before is not None and before.status is status
        made = Condition(
            type=type,
            status=status,
            observed_generation=self.seen.job.generation,
            last_transition_time=before.last_transition_time if before and same else self.now,
            reason=reason,
            message=_short(message),
        )
        others = [each for each in self.status.conditions if each.type is not type]
        order = list(ConditionType)
        self.set(conditions=tuple(sorted([*others, made], key=lambda c: order.index(c.type))))

    def drop(self, *types: ConditionType) -> None:
        """Take conditions away that are there only while they hold."""
        kept = tuple(each for each in self.status.conditions if each.type not in types)
        self.set(conditions=kept)

    def enter(
        self,
        phase: JobPhase,
        reason: str,
        message: str,
        is_warning: bool = False,
        is_stuck: bool = False,
    ) -> None:
        """Say where the job is; people are told when that is news.

        Args:
            is_stuck: whether it cannot go on without a change.
        """
        news = (self.status.phase, self.status.reason) != (phase, reason)
        self.set(phase=phase, reason=reason, message=_short(message))
        if news:
            self.note(reason, message, is_warning)
        for type, status in conditions_of(phase, is_stuck).items():
            if status is None:
                self.drop(type)
            else:
                self.conclude(type, status, reason, message)

    def decision(self) -> Decision:
        """What was collected. GPUs are accounted for whenever something else is written, too."""
        self.set(observed_generation=self.seen.job.generation, gpus=self._gpus())
        if self.status != self.seen.job.status:
            self._account()
        status = RLHFJobStatus.model_validate(self.status.model_dump())
        return Decision(
            status, tuple(self.actions), tuple(self._notes), tuple(self._restarts), self._again
        )

    def _gpus(self) -> int:
        """Those of its cluster, as long as that is there and its pods may be."""
        name = self.status.cluster.name if self.status.cluster else ""
        cluster = self.seen.cluster(name)
        if cluster is None or not cluster.is_ours or cluster.is_suspended:
            return 0
        return self.seen.job.num_gpus if self.seen.job.job else self.status.gpus

    def _account(self) -> None:
        """Add up the time of the GPUs that were held until now."""
        before = self.seen.job.status
        held = self.seconds_since(before.gpus_accounted_time) * before.gpus
        self.set(
            gpu_seconds=before.gpu_seconds + int(held),
            gpus_accounted_time=self.now if self.status.gpus else None,
        )


def later(time: datetime, seconds: float) -> datetime:
    """A time so many seconds after another."""
    return time + timedelta(seconds=seconds)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 4]} ..."
