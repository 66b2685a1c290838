"""LiveProgress: progress on a terminal, a few lines that update themselves.

Notices scroll by above them. `LiveView` builds the lines, `LiveProgress` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rlhf_api.report import REWARD_MEAN, SavingProblem
from rlhf_api.spec.checkpoint import EVALUATION_LENGTH
from rlhf_runtime.telemetry.metric_names import (
    describe,
    format_seconds,
    format_value,
    role_metric,
)
from rlhf_runtime.telemetry.progress_text import (
    SPACE_FREE,
    Pace,
    restart_text,
    resumed_text,
    sparkline,
)
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.summary import EVALUATION_REWARD, EXACT_MATCH, Summary
from rlhf_runtime.telemetry.summary_table import summary_table

# Widths in characters.
LABEL_WIDTH = 11
BAR_WIDTH = 28
SPARKLINE_WIDTH = 24
# Further metrics of the last step, by their labels.
SHOWN = {
    "length": "response/length_mean",
    "tokens/s": "throughput/tokens_per_second",
}


class LiveView:
    """State of the lines. The drawing thread of the terminal calls `render`."""

    def __init__(self) -> None:
        self._run: RunRecord | None = None
        self._phases: list[tuple[str, float]] = []
        self._warm_start: WarmStartRecord | None = None
        self._step: StepRecord | None = None
        # Sum of step times.
        self._elapsed = 0.0
        self._rewards: list[float] = []
        self._evaluations: dict[int, EvaluationRecord] = {}
        self._pace = Pace()
        self._spinner = Spinner("dots", style="cyan")
        self._saved: int | None = None
        self._stopped = False

    def begin(self, run: RunRecord) -> None:
        """Remember the header."""
        self._run = run

    def startup(self, phase: str, seconds: float) -> None:
        """Remember a finished phase."""
        self._phases.append((phase, seconds))

    def warm_start(self, record: WarmStartRecord) -> None:
        """Remember the newest warm-start step."""
        self._warm_start = record

    def step(self, record: StepRecord) -> None:
        """Remember the newest step."""
        self._pace.add(record.seconds)
        self._elapsed += record.seconds
        if REWARD_MEAN in record.metrics:
            self._rewards.append(record.metrics[REWARD_MEAN])
        self._step = record

    def evaluation(self, record: EvaluationRecord) -> None:
        """Remember an evaluation."""
        self._evaluations[record.step] = record

    def saved(self, step: int) -> None:
        """Remember the newest checkpoint."""
        self._saved = step

    def stop(self) -> None:
        """The run is over: the next drawing is the last one."""
        self._stopped = True

    def render(self) -> RenderableType:
        """The current lines."""
        run = self._run
        if run is None:
            return Text("")
        lines: list[RenderableType] = [_header(run), self._startup_line()]
        if self._warm_start is not None:
            lines.append(self._warm_start_line(run, self._warm_start))
        if self._step is not None:
            lines.append(self._training_line(run, self._step))
            lines.append(_row("", self._metrics_text(self._step)))
            lines.append(_row("", _phases_text(self._step.phases)))
        if self._evaluations:
            lines.append(_row("held out", self._evaluation_text()))
        if self._saved is not None:
            lines.append(_row("saved", Text(f"step {self._saved}")))
        return Group(*lines)

    def _startup_line(self) -> RenderableType:
        text = Text(overflow="fold")
        for phase, seconds in self._phases:
            text.append("✓ ", style="green")
            text.append(f"{phase} ")
            text.append(f"{format_seconds(seconds)}   ", style="dim")
        started = self._warm_start or self._step or self._evaluations
        if started or self._stopped:
            return _row("start-up", text)
        waiting = Table.grid(padding=(0, 1))
        waiting.add_row(text, self._spinner) if self._phases else waiting.add_row(self._spinner)
        return _row("start-up", waiting)

    def _warm_start_line(self, run: RunRecord, record: WarmStartRecord) -> RenderableType:
        text = Text(f" {record.step}/{run.warm_start_steps}  ")
        for name, value in record.metrics.items():
            label = describe(name).title.lower()
            text.append(f"{label} ", style="dim")
            text.append(f"{format_value(value, describe(name).format)}  ")
        done = self._step is not None or bool(self._evaluations)
        # A warm start may end early: its last step completes the bar.
        total = record.step if done else run.warm_start_steps
        return _row("warm start", _bar(record.step, total), text)

    def _training_line(self, run: RunRecord, record: StepRecord) -> RenderableType:
        text = Text(f" {record.step}/{run.total_steps}", style="bold")
        text.append(f"  {format_seconds(self._elapsed)}", style="not bold dim")
        remaining = self._pace.remaining(run.total_steps - record.step)
        if remaining and not self._stopped:
            text.append(f"  {format_seconds(remaining)} left", style="not bold")
        return _row("training", _bar(record.step, run.total_steps), text)

    def _metrics_text(self, record: StepRecord) -> Text:
        text = Text()
        if REWARD_MEAN in record.metrics:
            text.append("reward ", style="dim")
            text.append(f"{record.metrics[REWARD_MEAN]:.3f} ", style="bold green")
            text.append(sparkline(self._rewards, SPARKLINE_WIDTH) + "   ", style="green")
        named = ("KL",) if REWARD_MEAN in record.metrics else ("loss", "accuracy", "KL")
        shown = {label: role_metric(record.metrics, label.lower()) for label in named} | SHOWN
        for label, name in shown.items():
            if name is not None and name in record.metrics:
                value = format_value(record.metrics[name], describe(name).format)
                text.append(f"{label} ", style="dim")
                text.append(f"{value}   ")
        return text

    def _evaluation_text(self) -> Text:
        steps = sorted(self._evaluations)
        first, last = self._evaluations[steps[0]], self._evaluations[steps[-1]]
        names = (EXACT_MATCH, EVALUATION_REWARD, EVALUATION_LENGTH)
        name = next((metric for metric in names if metric in last.metrics), EVALUATION_REWARD)
        value = last.metrics.get(name, math.nan)
        text = Text()
        text.append(f"{describe(name).title.lower()} ", style="dim")
        text.append(f"{value:.3f}", style="bold cyan")
        text.append(f" at step {last.step}", style="dim")
        if first is not last and name in first.metrics:
            text.append(f"   {first.metrics[name]:.3f} at step {first.step}", style="dim")
        return text


def _header(run: RunRecord) -> RenderableType:
    text = Text()
    text.append(run.job, style="bold")
    text.append(f"   {run.algorithm} · {run.devices}   ")
    text.append(run.output, style="dim")
    return text


def _phases_text(phases: Mapping[str, float]) -> Text:
    text = Text()
    for index, (phase, seconds) in enumerate(phases.items()):
        text.append(" · " if index else "", style="dim")
        text.append(f"{phase} ", style="dim")
        text.append(format_seconds(seconds))
    return text


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=min(done, max(total, 1)), width=BAR_WIDTH)


def _row(label: str, *parts: RenderableType) -> Table:
    row = Table.grid()
    row.add_column(width=LABEL_WIDTH, style="dim")
    row.add_row(label, *parts)
    return row


class LiveProgress:
    """Draws on a terminal, four times a second."""

    def __init__(self, stream: TextIO, console: Console | None = None) -> None:
        self._console = console or Console(file=stream, highlight=False)
        self._view = LiveView()
        self._live = Live(
            # rich calls this in a thread of its own.
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

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        """Print that the checkpoint of a step could not be written."""
        self.notice(message)

    def waiting_for_space(self, message: str) -> None:
        """Print why the run waits, and the end of the wait."""
        self.notice(message or SPACE_FREE)

    def resumed(self, step: int, address: str) -> None:
        """Print the checkpoint from which the run resumes."""
        self.notice(resumed_text(step))

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """Print the cause of a restart."""
        self.notice(restart_text(number, seconds, reason, message))

    def notice(self, text: str) -> None:
        """Print a text above the lines."""
        # As Text: brackets in messages are no markup.
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
            # `Live.stop` draws once more, without spinner and remaining time.
            self._view.stop()
            self._live.stop()
