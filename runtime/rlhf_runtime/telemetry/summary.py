"""The summary of a run. Pure: records in, one frozen summary out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rlhf_api.report import REWARD_MEAN
from rlhf_runtime.telemetry.records import Outcome, RunRecords, StepRecord

EXACT_MATCH = "evaluation/exact_match"
EVALUATION_REWARD = "evaluation/reward_mean"


@dataclass(frozen=True)
class Change:
    """A metric from its first to its last finite value."""

    metric: str
    first: float
    last: float
    best: float
    """The largest."""
    best_step: int


@dataclass(frozen=True)
class Summary:
    """A run in numbers. Durations are seconds, memory is bytes."""

    job: str
    algorithm: str
    outcome: Outcome
    reason: str
    message: str
    steps: int
    """The last recorded training step, or the step of the checkpoint from which the run resumed."""
    total_steps: int
    """Steps of the schedule."""
    model_step: int | None
    """Step whose weights the final model has. None: there is none."""
    reward: Change | None
    """Mean training reward. None: no finite value was recorded."""
    exact_match: Change | None
    """Exact match of evaluations, from before training to the last one."""
    evaluation_reward: Change | None
    """Mean reward of evaluations."""
    warm_start_steps: int
    startup_seconds: Mapping[str, float]
    phase_seconds: Mapping[str, float]
    """Sum over all steps."""
    training_seconds: float
    """Sum of step times."""
    total_seconds: float | None
    """Sum over starts of the command, each from its start to its end. None: unfinished."""
    step_seconds_median: float | None
    tokens: int
    tokens_per_second: float | None
    """All tokens over the training seconds."""
    peak_memory: Mapping[str, int]
    """Largest resident memory of each process."""
    starts: int
    """Number of commands."""
    restarts: int
    """Number of restarts of workers by the failure policy."""
    steps_repeated: int
    not_finite: Mapping[str, int]
    """Number of steps with NaN or infinity, by metric."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for summary.json."""
        # The key is part of the file's format.
        keys = {"evaluation_reward": "held_out_reward"}
        return {keys.get(key, key): value for key, value in dataclasses.asdict(self).items()}


def summarize(records: RunRecords) -> Summary:
    """Summarize a run, finished or not, with or without records."""
    run = records.runs[-1] if records.runs else None
    end = records.end
    steps = records.steps
    training_seconds = math.fsum(step.seconds for step in steps)
    # Workers that one command starts again have equal `started`.
    starts = len({run.started for run in records.runs})
    tokens = sum(step.tokens for step in steps)
    return Summary(
        job=run.job if run else "",
        algorithm=run.algorithm if run else "",
        outcome=end.outcome if end else Outcome.UNFINISHED,
        reason=end.reason if end else "",
        message=end.message if end else "",
        steps=records.reached_step,
        total_steps=run.total_steps if run else 0,
        model_step=records.model_step,
        reward=_change(REWARD_MEAN, steps),
        exact_match=_change(EXACT_MATCH, records.evaluations),
        evaluation_reward=_change(EVALUATION_REWARD, records.evaluations),
        warm_start_steps=records.warm_start[-1].step if records.warm_start else 0,
        startup_seconds=dict(records.startup.phases) if records.startup else {},
        phase_seconds=_phase_seconds(steps),
        training_seconds=training_seconds,
        total_seconds=records.total_seconds if end and run else None,
        step_seconds_median=median(step.seconds for step in steps) if steps else None,
        tokens=tokens,
        tokens_per_second=tokens / training_seconds if training_seconds > 0 else None,
        peak_memory=_peak_memory(steps),
        starts=starts,
        restarts=len(records.runs) - starts,
        steps_repeated=records.steps_repeated,
        not_finite=_not_finite(steps),
    )


def _change(metric: str, records: Iterable[Any]) -> Change | None:
    values = [
        (record.step, record.metrics[metric])
        for record in records
        if metric in record.metrics and math.isfinite(record.metrics[metric])
    ]
    if not values:
        return None
    best_step, best = max(values, key=lambda pair: pair[1])
    return Change(metric, values[0][1], values[-1][1], best, best_step)


def _phase_seconds(steps: Sequence[StepRecord]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for step in steps:
        for phase, value in step.phases.items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    return seconds


def _peak_memory(steps: Sequence[StepRecord]) -> dict[str, int]:
    peak: dict[str, int] = {}
    for step in steps:
        for process, size in step.memory.items():
            peak[process] = max(peak.get(process, 0), size)
    return peak


def _not_finite(steps: Sequence[StepRecord]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for step in steps:
        for name, value in step.metrics.items():
            if not math.isfinite(value):
                counts[name] = counts.get(name, 0) + 1
    return counts
