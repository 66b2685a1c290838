"""Keeps a run's StatusReport up to date: one of those who hear of a run's progress."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_api.report import CheckpointReport, RunPhase
from rlhf_runtime.telemetry.pace import Pace
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.status_board import StatusBoard
from rlhf_runtime.telemetry.summary import Summary

TOKENS_PER_SECOND = "throughput/tokens_per_second"
MOST_METRICS = 256
LONGEST_SECONDS = 2**31 - 1
METRIC_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class StatusProgress:
    """Writes what happens to the board."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._pace = Pace()
        self._total_steps = 0
        self._reached = 0
        self._repeated = 0
        self._held_out: Mapping[str, float] = {}
        self._trained: Mapping[str, float] = {}

    def begin(self, run: RunRecord) -> None:
        """Workers are about to start."""
        self._total_steps = run.total_steps
        self._board.update(phase=RunPhase.START, total_steps=run.total_steps)

    def startup(self, phase: str, seconds: float) -> None:
        """A part of the start is over: what was said before it is old."""
        self._board.update(reason=None, message=f"{phase} after {seconds:.1f} s")

    def warm_start(self, record: WarmStartRecord) -> None:
        """Tell the supervised start's metrics."""
        self._board.update(
            phase=RunPhase.WARM_START,
            metrics=reportable(record.metrics),
            message=f"step {record.step} of the warm start",
        )

    def step(self, record: StepRecord) -> None:
        """Tell the step, what it measured, and how long the rest will take."""
        self._pace.add(record.seconds)
        self._trained = record.metrics
        self._reached = max(self._reached, record.step)
        speed = record.metrics.get(TOKENS_PER_SECOND)
        self._board.update(
            phase=RunPhase.TRAIN,
            step=record.step,
            metrics=reportable({**self._trained, **self._held_out}),
            seconds_remaining=_whole(self._pace.remaining(self._total_steps - record.step)),
            tokens_per_second=speed if speed is not None and math.isfinite(speed) else None,
            reason=None,
            message="",
        )

    def evaluation(self, record: EvaluationRecord) -> None:
        """Tell the held-out metrics beside those of the steps that follow."""
        self._held_out = record.metrics
        self._board.update(metrics=reportable({**self._trained, **self._held_out}))

    def saved(self, step: int, address: str) -> None:
        """Tell the newest checkpoint."""
        self._board.update(checkpoint=CheckpointReport(step=step, path=address))

    def resumed(self, step: int, address: str) -> None:
        """Tell from which checkpoint the run goes on, and what is lost with that."""
        self._repeated += max(0, self._reached - step)
        self._reached = step
        self._board.update(
            step=step,
            checkpoint=CheckpointReport(step=step, path=address),
            steps_repeated=self._repeated,
        )

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """Tell why workers are started again."""
        self._board.update(phase=RunPhase.RESTART, restarts=number, reason=reason, message=message)

    def notice(self, text: str) -> None:
        """Tell it, until there is something newer."""
        self._board.update(message=text)

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """The command itself makes the last report, when it knows its exit code."""

    def close(self) -> None:
        """The board stays as it is."""


def reportable(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that a report can hold: finite, with plain names, not too many."""
    fitting = {
        name: float(value)
        for name, value in metrics.items()
        if math.isfinite(value) and METRIC_NAME.fullmatch(name)
    }
    return dict(sorted(fitting.items())[:MOST_METRICS])


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else min(round(seconds), LONGEST_SECONDS)
