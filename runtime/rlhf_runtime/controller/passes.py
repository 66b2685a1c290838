"""Which passes over the job's graphs training consists of, and how they are sent ahead. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from rlhf_api.plan import GraphName
from rlhf_api.schedule import ScheduleSpec

Sent = TypeVar("Sent")


@dataclass(frozen=True)
class PassAt:
    """A pass over one graph."""

    graph: GraphName
    """STEP or EVALUATION."""
    step: int
    """The training step, or how many of them come before the evaluation."""


def training_passes(schedule: ScheduleSpec, evaluates: bool) -> Iterator[PassAt]:
    """Every training step, with evaluations before the first, after the last and as scheduled.

    Args:
        schedule: steps, and how often is evaluated.
        evaluates: whether the job has an evaluation.
    """
    every = schedule.evaluate_every_steps
    for step in range(schedule.steps + 1):
        if step:
            yield PassAt(GraphName.STEP, step)
        due = step in (0, schedule.steps) or (every and step % every == 0)
        if evaluates and due:
            yield PassAt(GraphName.EVALUATION, step)


def keep_ahead(sending: Iterable[Sent], wait: Callable[[Sent], None], ahead: int) -> None:
    """Send one thing after the other and wait for each, in order, `ahead` of them later.

    Args:
        sending: sends the next thing whenever it is asked for one.
        wait: returns when a thing that was sent is over.
        ahead: things that are sent before the one that is waited for is over.
    """
    in_flight: deque[Sent] = deque()
    for sent in sending:
        in_flight.append(sent)
        if len(in_flight) > ahead:
            wait(in_flight.popleft())
    while in_flight:
        wait(in_flight.popleft())
