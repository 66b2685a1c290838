"""The progress of a run, told to whoever started it: one protocol, two tellers.

The controller calls these methods from its loop; none of them may block or fail for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

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
    """Tells people how far a run is."""

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
        """There is a checkpoint of a step, at an address."""

    def resumed(self, step: int, address: str) -> None:
        """Workers go on from the checkpoint of a step."""

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """The workers failed; in so many seconds the restart of that number begins."""

    def notice(self, text: str) -> None:
        """Something that a person should read."""

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """The run is over: tell what came of it and which files were written."""

    def close(self) -> None:
        """Give the terminal back; safe to call twice and without finish()."""


class Both:
    """Tells two tellers the same."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._tellers = (first, second)

    def begin(self, run: RunRecord) -> None:
        """The run starts."""
        for teller in self._tellers:
            teller.begin(run)

    def startup(self, phase: str, seconds: float) -> None:
        """A start-up phase is over."""
        for teller in self._tellers:
            teller.startup(phase, seconds)

    def warm_start(self, record: WarmStartRecord) -> None:
        """A step of the supervised warm start is over."""
        for teller in self._tellers:
            teller.warm_start(record)

    def step(self, record: StepRecord) -> None:
        """A training step is over."""
        for teller in self._tellers:
            teller.step(record)

    def evaluation(self, record: EvaluationRecord) -> None:
        """An evaluation is over."""
        for teller in self._tellers:
            teller.evaluation(record)

    def saved(self, step: int, address: str) -> None:
        """There is a checkpoint of a step."""
        for teller in self._tellers:
            teller.saved(step, address)

    def resumed(self, step: int, address: str) -> None:
        """Workers go on from the checkpoint of a step."""
        for teller in self._tellers:
            teller.resumed(step, address)

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """Workers are started again."""
        for teller in self._tellers:
            teller.restarting(number, seconds, reason, message)

    def notice(self, text: str) -> None:
        """Something that a person should read."""
        for teller in self._tellers:
            teller.notice(text)

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """The run is over."""
        for teller in self._tellers:
            teller.finish(summary, files)

    def close(self) -> None:
        """Give back what they hold."""
        for teller in self._tellers:
            teller.close()


def make_progress(stream: TextIO) -> Progress:
    """A live display if the stream is a terminal, plain lines otherwise."""
    return LiveProgress(stream) if stream.isatty() else PlainProgress(stream)
