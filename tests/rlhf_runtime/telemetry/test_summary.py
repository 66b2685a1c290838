"""A run summed up by hand and by the code."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from rlhf_runtime.telemetry.records import (
    EndRecord,
    EvaluationRecord,
    Outcome,
    RecordLog,
    ResumedRecord,
    RunRecord,
    RunRecords,
    StepRecord,
)
from rlhf_runtime.telemetry.summary import summarize

RUN = RunRecord("sort", "PPO", "1 CPU rank", "out", total_steps=4, started=100.0)
STEPS = tuple(
    StepRecord(
        step=number,
        metrics={"reward/mean": reward},
        phases={"generate": seconds / 2, "train": seconds / 4},
        seconds=seconds,
        tokens=tokens,
        memory={"rank 0": memory},
    )
    for number, reward, seconds, tokens, memory in (
        (1, math.nan, 4.0, 100, 7),
        (2, 0.25, 1.0, 200, 9),
        (3, 0.75, 2.0, 300, 8),
        (4, 0.5, 1.0, 400, 8),
    )
)
EVALUATIONS = tuple(
    EvaluationRecord(step, {"evaluation/exact_match": value})
    for step, value in ((0, 0.1), (2, 0.9), (4, 0.8))
)


def test_a_run_in_numbers() -> None:
    end = EndRecord(Outcome.SUCCEEDED, finished=150.0)
    summary = summarize(
        RunRecords(
            (RUN, RUN),
            steps=STEPS,
            evaluations=EVALUATIONS,
            end=end,
            steps_repeated=2,
            total_seconds=50.0,
        )
    )
    assert summary.outcome is Outcome.SUCCEEDED
    assert (summary.steps, summary.total_steps) == (4, 4)
    assert summary.reward is not None and summary.exact_match is not None
    assert (summary.reward.first, summary.reward.last) == (0.25, 0.5)
    assert (summary.reward.best, summary.reward.best_step) == (0.75, 3)
    assert (summary.exact_match.first, summary.exact_match.last) == (0.1, 0.8)
    assert (summary.exact_match.best, summary.exact_match.best_step) == (0.9, 2)
    assert summary.phase_seconds == {"generate": 4.0, "train": 2.0}
    assert summary.training_seconds == 8.0
    assert summary.step_seconds_median == 1.5
    assert summary.total_seconds == 50.0
    assert summary.tokens == 1000
    assert summary.tokens_per_second == 125.0
    assert summary.peak_memory == {"rank 0": 9}
    assert (summary.starts, summary.restarts, summary.steps_repeated) == (1, 1, 2)
    assert summary.not_finite == {"reward/mean": 1}
    assert summary.evaluation_reward is None


def step_at(step: int, finished: float) -> StepRecord:
    return StepRecord(step, {}, {}, seconds=1.0, tokens=1, finished=finished)


def start_at(started: float, workers_started: float) -> RunRecord:
    return replace(RUN, started=started, workers_started=workers_started)


def test_a_command_that_was_given_again_is_no_restart_and_all_of_them_take_time() -> None:
    """Killed after 30 s; interrupted after 20 s with one restart; then 15 s to the end."""
    log = RecordLog()
    for record in (
        start_at(100.0, 100.0),
        step_at(1, 110.0),
        step_at(2, 130.0),
        start_at(1000.0, 1000.0),
        ResumedRecord(1),
        step_at(2, 1008.0),
        start_at(1000.0, 1010.0),
        EndRecord(Outcome.INTERRUPTED, 1020.0),
        start_at(5000.0, 5000.0),
        ResumedRecord(4),
        EndRecord(Outcome.SUCCEEDED, 5015.0),
    ):
        log.add(record)
    summary = summarize(log.records())
    assert (summary.starts, summary.restarts, summary.steps_repeated) == (3, 1, 1)
    assert summary.total_seconds == 30.0 + 20.0 + 15.0
    assert summary.steps == 4, "what the checkpoint has behind it"


def test_a_run_without_an_end_is_unfinished() -> None:
    summary = summarize(RunRecords(runs=(RUN,), steps=STEPS[:2]))
    assert summary.outcome is Outcome.UNFINISHED
    assert summary.total_seconds is None
    assert summary.steps == 2


@pytest.mark.parametrize("records", [RunRecords(), RunRecords(runs=(RUN,))])
def test_a_run_without_steps_sums_up_to_nothing(records: RunRecords) -> None:
    summary = summarize(records)
    assert summary.steps == 0
    assert summary.reward is None
    assert summary.tokens_per_second is None
    assert summary.step_seconds_median is None


def test_a_summary_is_plain_json() -> None:
    summary = summarize(RunRecords(runs=(RUN,), steps=STEPS, evaluations=EVALUATIONS))
    again = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert again["outcome"] == "unfinished"
    assert again["exact_match"]["best"] == 0.9
