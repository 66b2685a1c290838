"""Progress: the protocol of displays of a run, and the choice of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

from rlhf_api.report import SavingProblem
from rlhf_runtime.telemetry.live_progress import LiveProgress
from rlhf_runtime.telemetry.plain_progress import PlainProgress
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.summary import Summary


class Progress(Protocol):
    """Displays the progress of a run."""

    # The controller calls these methods from its loop: they must not block.

    def begin(self, run: RunRecord) -> None:
        """The run starts; called first."""

    def startup(self, phase: str, seconds: float) -> None:
        """A start-up phase is over."""

    def warm_start(self, record: WarmStartRecord) -> None:
        """A step of the supervised warm start is over."""

    def step(self, record: StepRecord) -> None:
        """A training step is over."""

    def evaluation(self, record: EvaluationRecord) -> None:
        """An evaluation is over."""

    def saved(self, step: int, address: str) -> None:
        """A checkpoint of a step was written to an address."""

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        """The checkpoint of a step could not be written."""

    def waiting_for_space(self, message: str) -> None:
        """The run waits because the disk is full; empty: the wait is over."""

    def resumed(self, step: int, address: str) -> None:
        """Workers resume from the checkpoint of a step."""

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """The workers failed; restart `number` begins in `seconds`."""

    def notice(self, text: str) -> None:
        """Show a text."""

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """The run is over: show its summary and the files that it wrote."""

    def close(self) -> None:
        """Release the terminal; safe to call twice and without finish()."""


class ProgressGroup:
    """Two displays as one; see `Progress` for the methods."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._displays = (first, second)

    def begin(self, run: RunRecord) -> None:
        for display in self._displays:
            display.begin(run)

    def startup(self, phase: str, seconds: float) -> None:
        for display in self._displays:
            display.startup(phase, seconds)

    def warm_start(self, record: WarmStartRecord) -> None:
        for display in self._displays:
            display.warm_start(record)

    def step(self, record: StepRecord) -> None:
        for display in self._displays:
            display.step(record)

    def evaluation(self, record: EvaluationRecord) -> None:
        for display in self._displays:
            display.evaluation(record)

    def saved(self, step: int, address: str) -> None:
        for display in self._displays:
            display.saved(step, address)

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        for display in self._displays:
            display.not_saved(step, problem, message)

    def waiting_for_space(self, message: str) -> None:
        for display in self._displays:
            display.waiting_for_space(message)

    def resumed(self, step: int, address: str) -> None:
        for display in self._displays:
            display.resumed(step, address)

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        for display in self._displays:
            display.restarting(number, seconds, reason, message)

    def notice(self, text: str) -> None:
        for display in self._displays:
            display.notice(text)

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        for display in self._displays:
            display.finish(summary, files)

    def close(self) -> None:
        for display in self._displays:
            display.close()


def make_progress(stream: TextIO) -> Progress:
    """A live display if the stream is a terminal, plain lines otherwise."""
    return LiveProgress(stream) if stream.isatty() else PlainProgress(stream)
