"""The passes that training consists of, and how they are sent ahead. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from rlhf_api.spec.schedule import ScheduleSpec

InFlight = TypeVar("InFlight")


class PassKind(StrEnum):
    """Purpose of a pass."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    SAVE = "save"
    """Copy the state and begin to write it."""
    COMMIT = "commit"
    """Turn the files of the last save into a checkpoint."""


@dataclass(frozen=True)
class ScheduledPass:
    """One pass of the workers."""

    kind: PassKind
    step: int
    """The training step; for other passes the number of steps before it."""


@dataclass(frozen=True)
class SaveSchedule:
    """Steps after which state is saved."""

    every_steps: int
    """Steps from one checkpoint to the next; 0: only after the last."""
    at_start: bool
    """True if the state before the first step is worth a checkpoint."""

    def is_due(self, step: int, last: int) -> bool:
        """True if state is saved after so many steps."""
        if step in (0, last):
            return step == last or self.at_start
        return self.every_steps > 0 and step % self.every_steps == 0


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a job resumes from."""

    step: int
    """The step of its checkpoint."""
    is_evaluated: bool
    """True if that step was evaluated."""


def training_passes(
    schedule: ScheduleSpec,
    saving: SaveSchedule,
    evaluates: bool,
    resume_from: ResumePoint | None = None,
    ends_early: Callable[[int], bool] = lambda step: False,
    retries_save: Callable[[], bool] = lambda: False,
) -> Iterator[ScheduledPass]:
    """Yield every training step, with evaluations and checkpoints.

    Evaluations are before the first step, after the last and as scheduled. A checkpoint is written
    while the next step runs, and committed after it. Training may end early after an evaluation;
    that step is then the last one.

    Args:
        schedule: number of steps and interval of evaluations.
        saving: when state is saved.
        evaluates: True if the job has an evaluation.
        resume_from: the checkpoint; None: from the start.
        ends_early: True if a step is the last one; called after its evaluation is complete.
        retries_save: True if the last checkpoint failed and another attempt is due; called after
            every step that was sent.
    """
    if resume_from is not None and resume_from.is_evaluated and ends_early(resume_from.step):
        return
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
            if ends_early(step):
                last = step
        if saving.is_due(step, last) or retries_save():
            yield ScheduledPass(PassKind.SAVE, step)
            commits.append(ScheduledPass(PassKind.COMMIT, step))
        if step == last:
            break
    yield from commits


def until_stopped(
    passes: Iterable[ScheduledPass], is_stop_requested: Callable[[], bool]
) -> Iterator[ScheduledPass]:
    """Yield passes until a stop is requested, then save the last step's state.

    Args:
        passes: all of them.
        is_stop_requested: called before every training step that follows another pass.
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


def keep_ahead(
    sending: Iterable[InFlight],
    wait: Callable[[InFlight], None],
    ahead: int,
    decides: Callable[[InFlight], bool] = lambda sent: False,
) -> None:
    """Send one item after the other; wait for each, in order, while `ahead` later ones are in
    flight.

    Args:
        sending: sends the next item whenever it is advanced.
        wait: returns when an item is complete.
        ahead: number of items that are sent before the oldest is complete.
        decides: True if the next item depends on the result of this one.
    """
    in_flight: deque[InFlight] = deque()
    for sent in sending:
        in_flight.append(sent)
        while len(in_flight) > (0 if decides(sent) else ahead):
            wait(in_flight.popleft())
    while in_flight:
        wait(in_flight.popleft())
