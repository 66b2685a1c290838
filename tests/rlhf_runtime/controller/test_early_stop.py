"""When training ends before its last step, and that it ends there after every interruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.spec.checkpoint import EVALUATION_REWARD, EXACT_MATCH
from rlhf_runtime.controller.early_stop import EarlyStop, early_stop
from rlhf_runtime.controller.training_passes import (
    PassKind,
    ResumePoint,
    SaveSchedule,
    ScheduledPass,
    keep_ahead,
    training_passes,
    until_stopped,
)

from ...depth import examples
from .jobs import make_job

Evaluations = Sequence[tuple[int, Mapping[str, float]]]
VALUES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def spec_of(patience: int, min_delta: float = 0.0, steps: int = 100, **schedule: Any) -> Any:
    early = {"earlyStop": {"patience": patience, "minDelta": min_delta}} if patience else {}
    settings = {"steps": steps, "promptsPerStep": 4, "evaluateEverySteps": 1} | schedule
    data = {"train": {"path": "t.jsonl"}, "evaluation": {"path": "e.jsonl"}}
    return make_job(schedule=settings | early, data=data).spec


def rewards(*values: float, every: int = 1) -> Evaluations:
    return [(every * number, {EVALUATION_REWARD: value}) for number, value in enumerate(values)]


def decide(values: Sequence[float], patience: int, min_delta: float = 0.0) -> EarlyStop | None:
    return early_stop(spec_of(patience, min_delta), len(values) - 1, rewards(*values))


@given(st.lists(VALUES, min_size=1, max_size=12), st.integers(1, 4), st.sampled_from([0, 0.25, 1]))
def test_the_last_evaluations_are_compared_with_all_before_them(
    values: list[float], patience: int, least: float
) -> None:
    count = len(values)
    earlier, latest = values[: max(0, count - patience)], values[-patience:]
    rises = any(all(late > early + least for early in earlier) for late in latest)
    stop = decide(values, patience, least)
    assert (stop is not None) == (count > patience and not rises)
    if stop is not None:
        assert (stop.best, stop.best_step) == (max(values), values.index(max(values)))


def test_it_is_said_why() -> None:
    assert str(decide([0.1, 0.5, 0.5], 1)) == (
        "training ended early, after step 2 of 100: evaluation/reward_mean has not risen in "
        "1 evaluation; its best value is 0.5, of step 1 (schedule.earlyStop)"
    )
    assert (
        "has not risen by more than 0.25 in 2 evaluations; its best value is 0.75, of step 2"
        in (str(decide([0.5, 0.5, 0.75], 2, 0.25)))
    )


@pytest.mark.parametrize(
    ("evaluations", "step"),
    [
        pytest.param(rewards(0.5), 0, id="the first one"),
        pytest.param(rewards(0.5, 0.5), 2, id="not of this step"),
        pytest.param(rewards(0.5, nan), 1, id="not a number"),
        pytest.param([(0, {EXACT_MATCH: 1.0}), (1, {EXACT_MATCH: 0.0})], 1, id="another metric"),
        pytest.param(rewards(0.5, 0.5, every=100), 100, id="of the last step"),
        pytest.param(rewards(0.5, inf), 1, id="infinitely better"),
    ],
)
def test_without_a_comparison_training_continues(evaluations: Evaluations, step: int) -> None:
    assert early_stop(spec_of(1), step, evaluations) is None


def test_evaluations_without_the_metric_do_not_count() -> None:
    evaluations = [*rewards(0.5, nan), (2, {}), (3, {EVALUATION_REWARD: 0.5})]
    assert early_stop(spec_of(1), 3, evaluations) is not None
    assert early_stop(spec_of(2), 3, evaluations) is None


def test_without_the_setting_training_never_ends_early() -> None:
    assert early_stop(spec_of(0), 3, rewards(0.5, 0.5, 0.5, 0.5)) is None


class Killed(Exception):
    """The end of a simulated driver."""


class Training:
    """A job of which every pass is a line, over many drivers; evaluations give listed values."""

    def __init__(self, spec: Any, saving: SaveSchedule, values: Sequence[float]) -> None:
        self.spec, self.saving, self.values = spec, saving, values
        self.checkpoint: tuple[ResumePoint, Evaluations] | None = None
        self.trained = 0
        """Last step whose result the driver has seen."""
        self.evaluated: dict[int, float] = {}

    def drive(self, ahead: int, kill_after: int | None = None, stop_after: int = 99) -> int:
        """Run to the end; returns the last step.

        Args:
            ahead: passes in flight.
            kill_after: number of events after which the driver dies.
            stop_after: step after which it is asked to stop.
        """
        evaluations = [] if self.checkpoint is None else [*self.checkpoint[1]]
        resume = None if self.checkpoint is None else self.checkpoint[0]
        self.trained = resume.step if resume else 0
        sent_last, events = self.trained, 0

        def count() -> None:
            nonlocal events
            events += 1
            if events == kill_after:
                raise Killed

        def send(one: ScheduledPass) -> ScheduledPass:
            nonlocal sent_last
            count()
            sent_last = one.step
            if one.kind is PassKind.TRAIN:
                assert one.step <= self.spec.schedule.steps
            return one

        def finish(one: ScheduledPass) -> None:
            count()
            if one.kind is PassKind.TRAIN:
                self.trained = one.step
            elif one.kind is PassKind.EVALUATE:
                value = self.values[one.step]
                evaluations.append((one.step, {EVALUATION_REWARD: value}))
                self.evaluated[one.step] = value
            elif one.kind is PassKind.COMMIT:
                known = [entry for entry in evaluations if entry[0] <= one.step]
                is_evaluated = bool(known) and known[-1][0] == one.step
                self.checkpoint = (ResumePoint(one.step, is_evaluated), known)

        def ends_early(step: int) -> bool:
            return early_stop(self.spec, step, evaluations) is not None

        passes = training_passes(self.spec.schedule, self.saving, True, resume, ends_early)
        sent = map(send, until_stopped(passes, lambda: sent_last >= stop_after))
        keep_ahead(sent, finish, ahead, lambda one: one.kind is PassKind.EVALUATE)
        return self.trained


@settings(max_examples=examples(200))
@given(
    st.lists(VALUES, min_size=13, max_size=13),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.integers(1, 40), max_size=4),
    st.integers(1, 13),
    st.integers(0, 3),
)
def test_a_job_ends_at_the_same_step_whenever_it_was_killed_or_stopped(
    values: list[float],
    patience: int,
    save_every: int,
    evaluate_every: int,
    at_start: bool,
    kills: list[int],
    stop: int,
    ahead: int,
) -> None:
    spec = spec_of(patience, steps=12, evaluateEverySteps=evaluate_every)
    saving = SaveSchedule(save_every, at_start)
    undisturbed = Training(spec, saving, values)
    last = undisturbed.drive(ahead)
    assert undisturbed.checkpoint is not None and undisturbed.checkpoint[0].step == last
    assert max(undisturbed.evaluated) == last, "the last step is evaluated"
    disturbed = Training(spec, saving, values)
    for kill in kills:
        try:
            disturbed.drive(ahead, kill)
        except Killed:
            continue
    disturbed.drive(ahead, stop_after=stop)
    assert disturbed.drive(ahead) == last
    assert disturbed.checkpoint == undisturbed.checkpoint
    assert disturbed.evaluated == undisturbed.evaluated
    # Everything is done: another driver trains nothing.
    before = dict(disturbed.evaluated)
    assert disturbed.drive(ahead) == last and disturbed.evaluated == before


@given(st.lists(VALUES, min_size=13, max_size=13), st.integers(1, 3), st.integers(1, 3))
def test_a_larger_patience_continues_as_if_it_had_always_been_set(
    values: list[float], patience: int, more: int
) -> None:
    saving = SaveSchedule(0, at_start=False)
    training = Training(spec_of(patience, steps=12, evaluateEverySteps=2), saving, values)
    training.drive(1)
    training.spec = spec_of(patience + more, steps=12, evaluateEverySteps=2)
    patient = Training(training.spec, saving, values)
    assert training.drive(1) == patient.drive(1)
    assert training.checkpoint == patient.checkpoint
