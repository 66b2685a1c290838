"""Progress on a terminal: a few lines that keep themselves up to date.

Notices scroll by above them. `live_view` builds the lines; this module only draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlhf_runtime.telemetry.live_view import LiveView
from rlhf_runtime.telemetry.notices import restart_text, resumed_text
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.summary import Summary
from rlhf_runtime.telemetry.summary_table import summary_table


class LiveProgress:
    """Draws on a terminal, four times a second."""

    def __init__(self, stream: TextIO, console: Console | None = None) -> None:
        self._console = console or Console(file=stream, highlight=False)
        self._view = LiveView()
        self._live = Live(
            get_renderable=self._view.render,
            console=self._console,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._open = False

    def begin(self, run: RunRecord) -> None:
        """Show the header and start drawing."""
        self._view.begin(run)
        self._live.start()
        self._open = True

    def startup(self, phase: str, seconds: float) -> None:
        """Tick a start-up phase."""
        self._view.startup(phase, seconds)

    def warm_start(self, record: WarmStartRecord) -> None:
        """Move the warm-start bar."""
        self._view.warm_start(record)

    def step(self, record: StepRecord) -> None:
        """Move the training bar."""
        self._view.step(record)

    def evaluation(self, record: EvaluationRecord) -> None:
        """Show the newest evaluation."""
        self._view.evaluation(record)

    def saved(self, step: int, address: str) -> None:
        """Show the newest checkpoint."""
        self._view.saved(step)

    def resumed(self, step: int, address: str) -> None:
        """Print the checkpoint from which the run resumes."""
        self.notice(resumed_text(step))

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """Print the cause of a restart."""
        self.notice(restart_text(number, seconds, reason, message))

    def notice(self, text: str) -> None:
        """Print a text above the lines."""
        self._console.print(Text(text, style="yellow"))

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """Stop drawing and print the summary."""
        self.close()
        self._console.print()
        self._console.print(summary_table(summary, files))

    def close(self) -> None:
        """Draw once more and release the terminal."""
        if self._open:
            self._open = False
            self._view.stop()
            self._live.stop()
