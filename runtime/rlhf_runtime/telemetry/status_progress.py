"""StatusProgress: updates the StatusReport from the progress of a run."""

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
MAX_METRICS = 256
LONGEST_SECONDS = 2**31 - 1
METRIC_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class StatusProgress:
    """Writes progress to the board."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._pace = Pace()
        self._total_steps = 0
        self._reached = 0
        self._repeated = 0
        self._evaluated: Mapping[str, float] = {}
        self._trained: Mapping[str, float] = {}

    def begin(self, run: RunRecord) -> None:
        """Workers are about to start."""
        self._total_steps = run.total_steps
        self._board.update(phase=RunPhase.START, total_steps=run.total_steps)

    def startup(self, phase: str, seconds: float) -> None:
        """Report a finished start-up phase; it replaces the last message."""
        self._board.update(reason=None, message=f"{phase} after {seconds:.1f} s")

    def warm_start(self, record: WarmStartRecord) -> None:
        """Report the metrics of the warm start."""
        self._board.update(
            phase=RunPhase.WARM_START,
            metrics=reportable(record.metrics),
            message=f"step {record.step} of the warm start",
        )

    def step(self, record: StepRecord) -> None:
        """Report a step, its metrics and the remaining time."""
        self._pace.add(record.seconds)
        self._trained = record.metrics
        self._reached = max(self._reached, record.step)
        speed = record.metrics.get(TOKENS_PER_SECOND)
        self._board.update(
            phase=RunPhase.TRAIN,
            step=record.step,
            metrics=reportable({**self._trained, **self._evaluated}),
            seconds_remaining=_rounded(self._pace.remaining(self._total_steps - record.step)),
            tokens_per_second=speed if speed is not None and math.isfinite(speed) else None,
            reason=None,
            message="",
        )

    def evaluation(self, record: EvaluationRecord) -> None:
        """Report evaluation metrics, also with the following steps."""
        self._evaluated = record.metrics
        self._board.update(metrics=reportable({**self._trained, **self._evaluated}))

    def saved(self, step: int, address: str) -> None:
        """Report the newest checkpoint."""
        self._board.update(checkpoint=CheckpointReport(step=step, path=address))

    def resumed(self, step: int, address: str) -> None:
        """Report the checkpoint from which the run resumes, and the repeated steps."""
        self._repeated += max(0, self._reached - step)
        self._reached = step
        self._board.update(
            step=step,
            checkpoint=CheckpointReport(step=step, path=address),
            steps_repeated=self._repeated,
        )

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """Report the cause of a restart."""
        self._board.update(phase=RunPhase.RESTART, restarts=number, reason=reason, message=message)

    def notice(self, text: str) -> None:
        """Report a text, until the next message."""
        self._board.update(message=text)

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """Nothing: the command makes the final report, which has its exit code."""

    def close(self) -> None:
        """Nothing: the board remains."""


def reportable(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite metrics with plain names, at most MAX_METRICS."""
    allowed = {
        name: float(value)
        for name, value in metrics.items()
        if math.isfinite(value) and METRIC_NAME.fullmatch(name)
    }
    return dict(sorted(allowed.items())[:MAX_METRICS])


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else min(round(seconds), LONGEST_SECONDS)
