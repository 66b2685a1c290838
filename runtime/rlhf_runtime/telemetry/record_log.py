"""RecordLog: collects the records of a run, during the run and from its files."""

from __future__ import annotations

import dataclasses
import math

from rlhf_runtime.telemetry.records import (
    EndRecord,
    EvaluationRecord,
    Record,
    ResumedRecord,
    RunRecord,
    RunRecords,
    StartupRecord,
    StepRecord,
    UnscoredRecord,
    WarmStartRecord,
)


class RecordLog:
    """Collects records without spans; a later record of the same step replaces the earlier one."""

    def __init__(self) -> None:
        self._runs: list[RunRecord] = []
        self._startup: StartupRecord | None = None
        self._warm_start: dict[int, WarmStartRecord] = {}
        self._steps: dict[int, StepRecord] = {}
        self._last_start_steps: set[int] = set()
        self._evaluations: dict[int, EvaluationRecord] = {}
        self._unscored: dict[UnscoredRecord, None] = {}
        self._end: EndRecord | None = None
        self._ended: dict[float, float] = {}
        self._resumed_from = 0
        self._repeated = 0
        self._damaged = 0

    def add(self, record: Record | None) -> None:
        """Add a record. None: a line that could not be read."""
        match record:
            case None:
                self._damaged += 1
            case RunRecord():
                self._runs.append(record)
                self._end = None
                self._resumed_from = 0
                self._last_start_steps.clear()
                self._extend_command(record.workers_started)
            case ResumedRecord():
                self._resumed_from = record.step
            case StartupRecord():
                self._startup = record
            case WarmStartRecord():
                self._warm_start[record.step] = record
            case StepRecord():
                self._repeated += record.step in self._steps
                self._steps[record.step] = dataclasses.replace(record, spans=())
                self._last_start_steps.add(record.step)
                self._extend_command(record.finished)
            case EvaluationRecord():
                self._evaluations[record.step] = record
            case UnscoredRecord():
                self._unscored[record] = None  # once, though the step was repeated
            case EndRecord():
                self._end = record
                self._extend_command(record.finished)

    def _extend_command(self, time: float) -> None:
        """Note that the last command was alive at a time."""
        if self._runs:
            started = self._runs[-1].started
            self._ended[started] = max(self._ended.get(started, started), time)

    def records(self) -> RunRecords:
        """All records so far, in order of steps."""
        return RunRecords(
            runs=tuple(self._runs),
            total_seconds=math.fsum(end - start for start, end in self._ended.items()),
            resumed_from=self._resumed_from,
            startup=self._startup,
            warm_start=tuple(self._warm_start[step] for step in sorted(self._warm_start)),
            steps=tuple(self._steps[step] for step in sorted(self._steps)),
            last_start_steps=tuple(self._steps[step] for step in sorted(self._last_start_steps)),
            evaluations=tuple(self._evaluations[step] for step in sorted(self._evaluations)),
            unscored=tuple(self._unscored),
            end=self._end,
            steps_repeated=self._repeated,
            damaged_lines=self._damaged,
        )
