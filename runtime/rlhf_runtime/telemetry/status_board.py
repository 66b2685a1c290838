"""The StatusReport of a run: the board with the current report, and the updates from progress."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_api.exits import ExitCode
from rlhf_api.report import (
    CheckpointReport,
    RunPhase,
    SavingProblem,
    SavingReport,
    StatusReport,
)
from rlhf_runtime.errors import NodeLost
from rlhf_runtime.telemetry.progress_text import SPACE_FREE, Pace
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.summary import Summary

# Limit of StatusReport.message, in characters.
LONGEST_MESSAGE = 4096
# Maximum seconds between reports without news.
HEARTBEAT_SECONDS = 30


class StatusBoard:
    """The latest StatusReport of one start of a driver. Thread-safe."""

    def __init__(
        self, job: str, submission_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._updated_at = clock()
        self._lock = threading.Lock()
        self._acknowledged = threading.Event()
        self._latest = StatusReport(
            job=job,
            submission_id=submission_id,
            sequence=1,
            phase=RunPhase.START,
            step=0,
            total_steps=0,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )

    @property
    def latest(self) -> StatusReport:
        """The current report."""
        with self._lock:
            return self._latest

    def update(self, **changes: Any) -> None:
        """Change fields of the report, by their Python names.

        The sequence number grows by one. A message becomes one line of limited length. After the
        final report nothing changes.
        """
        if "message" in changes:
            changes["message"] = _as_line(changes["message"])
        with self._lock:
            if self._latest.final:
                return
            self._updated_at = self._clock()
            # A constructor validates the changes; `model_copy` would not.
            before = {name: getattr(self._latest, name) for name in StatusReport.model_fields}
            sequence = self._latest.sequence + 1
            self._latest = StatusReport(**before | changes | {"sequence": sequence})

    def beat(self) -> None:
        """Repeat the report if it is older than the heartbeat: the driver is alive."""
        # Only the thread that drives the run calls this: a hanging driver must not seem alive.
        if self._clock() - self._updated_at >= HEARTBEAT_SECONDS:
            self.update()

    def end(
        self, phase: RunPhase, code: ExitCode, reason: str = "", message: str = ""
    ) -> StatusReport:
        """Make the report final, and return it."""
        if phase is RunPhase.SUCCEEDED:
            # After an early stop, steps remain and no time.
            self.update(seconds_remaining=0)
        self.update(phase=phase, final=True, exit_code=code, reason=reason or None, message=message)
        return self.latest

    def acknowledge(self, submission_id: str, sequence: int) -> bool:
        """Note that a report was stored. Returns True if it is one of this submission."""
        # Only the final report is waited for.
        latest = self.latest
        is_ours = submission_id == latest.submission_id and 0 <= sequence <= latest.sequence
        if is_ours and latest.final and sequence == latest.sequence:
            self._acknowledged.set()
        return is_ours

    def wait_until_acknowledged(self, seconds: float) -> bool:
        """Wait until the final report is acknowledged. Returns False after `seconds`."""
        return self._acknowledged.wait(seconds)


def _as_line(text: str) -> str:
    """A text as one line that every reader can decode."""
    # File names may contain bytes that are no text.
    line = " ".join(text.split())[:LONGEST_MESSAGE]
    return line.encode("utf-8", "replace").decode("utf-8")


TOKENS_PER_SECOND = "throughput/tokens_per_second"
# Limits of the fields of StatusReport, which rejects other values.
MAX_METRICS = 256
LONGEST_SECONDS = 2**31 - 1
METRIC_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class StatusProgress:
    """Writes progress to the board."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._pace = Pace()
        self._total_steps = 0
        # Last step that was trained, and number of steps that were trained again.
        self._reached = 0
        self._repeated = 0
        self._disruptions = 0
        self._evaluated: Mapping[str, float] = {}
        self._trained: Mapping[str, float] = {}
        # Checkpoints that could not be written: of this driver, and in a row with the first step.
        self._failures = 0
        self._failures_in_a_row = 0
        self._failing_since = 0
        self._saving = SavingReport()

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
        # The steps until the next evaluation report it, too.
        self._evaluated = record.metrics
        self._board.update(metrics=reportable({**self._trained, **self._evaluated}))

    def saved(self, step: int, address: str) -> None:
        """Report the newest checkpoint."""
        self._failures_in_a_row = 0
        self._saving = SavingReport(failures=self._failures)
        self._board.update(
            checkpoint=CheckpointReport(step=step, path=address), saving=self._saving
        )

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        """Report that checkpoints fail, until one is written."""
        if not self._failures_in_a_row:
            self._failing_since = step
        self._failures += 1
        self._failures_in_a_row += 1
        number = self._failures_in_a_row
        text = f"{number} failed since step {self._failing_since}: {message}"
        self._saving = SavingReport(failures=self._failures, reason=problem, message=_as_line(text))
        self._board.update(saving=self._saving, message=message)

    def waiting_for_space(self, message: str) -> None:
        """Report a wait as a failure to save, until it is over."""
        if not message:
            self._board.update(saving=self._saving, reason=None, message=SPACE_FREE)
            return
        waiting = SavingReport(
            failures=self._failures, reason=SavingProblem.NO_SPACE, message=_as_line(message)
        )
        self._board.update(saving=waiting, reason=SavingProblem.NO_SPACE, message=message)

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
        self._disruptions += reason == NodeLost.reason
        self._board.update(
            phase=RunPhase.RESTART,
            restarts=number,
            disruptions=self._disruptions,
            reason=reason,
            message=message,
        )

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
