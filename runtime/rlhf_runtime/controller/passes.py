"""Which passes of the workers training consists of, and how they are sent ahead. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from rlhf_api.spec.schedule import ScheduleSpec

InFlight = TypeVar("InFlight")


class PassKind(StrEnum):
    """What a pass is for."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    SAVE = "save"
    """State is copied, and begins to be written."""
    COMMIT = "commit"
    """What the last save wrote becomes a checkpoint."""


@dataclass(frozen=True)
class ScheduledPass:
    """One pass of the workers."""

    kind: PassKind
    step: int
    """The training step, or how many of them come before."""


@dataclass(frozen=True)
class SaveSchedule:
    """When state is saved."""

    every_steps: int
    """Steps from one checkpoint to the next; 0: only after the last."""
    at_start: bool
    """Whether the state before the first step is worth a checkpoint."""

    def is_due(self, step: int, last: int) -> bool:
        """Whether state is saved after so many steps."""
        if step in (0, last):
            return step == last or self.at_start
        return self.every_steps > 0 and step % self.every_steps == 0


@dataclass(frozen=True)
class ResumePoint:
    """Where a job resumes."""

    step: int
    """The step of its checkpoint."""
    is_evaluated: bool
    """Whether that step was evaluated."""


def training_passes(
    schedule: ScheduleSpec,
    saving: SaveSchedule,
    evaluates: bool,
    resume_from: ResumePoint | None = None,
) -> Iterator[ScheduledPass]:
    """Every training step, with evaluations and checkpoints.

    There is an evaluation before the first step, after the last and as scheduled. A checkpoint is
    written while the next step runs, and committed after it.

    Args:
        schedule: steps, and how often is evaluated.
        saving: when state is saved.
        evaluates: whether the job has an evaluation.
        resume_from: where the job goes on; None: from the start.
    """
    every, last = schedule.evaluate_every_steps, schedule.steps
    commits: deque[ScheduledPass] = deque()
    if evaluates and resume_from == ResumePoint(last, is_evaluated=False):
        yield ScheduledPass(PassKind.EVALUATE, last)
    for step in range(0 if resume_from is None else resume_from.step + 1, last + 1):
        if step:
            yield ScheduledPass(PassKind.TRAIN, step)
        while commits:
            yield commits.popleft()
        if evaluates and (step in (0, last) or (every and step % every == 0)):
            yield ScheduledPass(PassKind.EVALUATE, step)
        if saving.is_due(step, last):
            yield ScheduledPass(PassKind.SAVE, step)
            commits.append(ScheduledPass(PassKind.COMMIT, step))
    yield from commits


def until_stopped(
    passes: Iterable[ScheduledPass], is_stop_requested: Callable[[], bool]
) -> Iterator[ScheduledPass]:
    """The passes up to the step after which a stop is wanted, with that step's state saved.

    Args:
        passes: all of them.
        is_wanted: whether to stop; asked before every training step but the first.
    """
    last: dict[PassKind, int] = {}
    for one in passes:
        if one.kind is PassKind.TRAIN and last and is_stop_requested():
            trained, saved = last.get(PassKind.TRAIN), last.get(PassKind.SAVE)
            if trained not in (None, saved):
                saved = trained
                yield ScheduledPass(PassKind.SAVE, saved)
            if saved not in (None, last.get(PassKind.COMMIT)):
                yield ScheduledPass(PassKind.COMMIT, saved)
            return
        yield one
        last[one.kind] = one.step


def keep_ahead(sending: Iterable[InFlight], wait: Callable[[InFlight], None], ahead: int) -> None:
    """Send one thing after the other and wait for each, in order, `ahead` of them later.

    Args:
        sending: sends the next thing whenever it is asked for one.
        wait: returns when a thing that was sent is over.
        ahead: things that are sent before the one that is waited for is over.
    """
    in_flight: deque[InFlight] = deque()
    for sent in sending:
        in_flight.append(sent)
        if len(in_flight) > ahead:
            wait(in_flight.popleft())
    while in_flight:
        wait(in_flight.popleft())
