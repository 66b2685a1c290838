"""What a run came to. Pure: records in, one frozen summary out."""

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
HELD_OUT_REWARD = "evaluation/reward_mean"


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
    """The last training step that was recorded, or that the checkpoint has behind it from which the
    run went on."""
    total_steps: int
    """Steps that the schedule asks for."""
    reward: Change | None
    """Mean training reward; None if no finite value was recorded."""
    exact_match: Change | None
    """Held-out exact match, from before training to the last evaluation."""
    held_out_reward: Change | None
    """Held-out mean reward."""
    warm_start_steps: int
    startup_seconds: Mapping[str, float]
    phase_seconds: Mapping[str, float]
    """Sum over all steps."""
    training_seconds: float
    """Sum of the steps' times."""
    total_seconds: float | None
    """Of all starts of the command, each from its begin to its end; None while unfinished."""
    step_seconds_median: float | None
    tokens: int
    tokens_per_second: float | None
    """All tokens over the training seconds."""
    peak_memory: Mapping[str, int]
    """Largest resident memory of each process."""
    starts: int
    """How often the command was given."""
    restarts: int
    """How often it started its workers again, by the failure policy."""
    steps_repeated: int
    not_finite: Mapping[str, int]
    """Steps in which a metric was NaN or infinite, for those metrics that ever were."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for summary.json."""
        return dataclasses.asdict(self)


def summarize(records: RunRecords) -> Summary:
    """Sum up a run, finished or not; a run without any record sums up to nothing."""
    run = records.runs[-1] if records.runs else None
    end = records.end
    steps = records.steps
    training_seconds = math.fsum(step.seconds for step in steps)
    starts = len({each.started for each in records.runs})
    tokens = sum(step.tokens for step in steps)
    return Summary(
        job=run.job if run else "",
        algorithm=run.algorithm if run else "",
        outcome=end.outcome if end else Outcome.UNFINISHED,
        reason=end.reason if end else "",
        message=end.message if end else "",
        steps=max(steps[-1].step if steps else 0, records.resumed_from),
        total_steps=run.total_steps if run else 0,
        reward=_change(REWARD_MEAN, steps),
        exact_match=_change(EXACT_MATCH, records.evaluations),
        held_out_reward=_change(HELD_OUT_REWARD, records.evaluations),
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
