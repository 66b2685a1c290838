"""Progress as plain lines for logs: a word for the kind, then name=value fields.

Step lines come at most once a second, and always for the last step; everything else always comes.
"""

# The fields of a kind keep their names and order: programs search and cut these logs.

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from rlhf_api.report import REWARD_MEAN, SavingProblem
from rlhf_runtime.telemetry.metric_names import role_metric
from rlhf_runtime.telemetry.progress_text import SPACE_FREE, Pace, restart_text, resumed_text
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    RunRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.summary import Summary

# Fields of a step line, and the metrics they show (None: the first role's of that name); a metric
# that the step lacks is left out.
STEP_METRICS = {
    "reward": REWARD_MEAN,
    "kl": None,
    "length": "response/length_mean",
    "rounds": "repeat/rounds",
    "tokens_per_second": "throughput/tokens_per_second",
}
# STEP_METRICS of a step without a reward.
WITHOUT_REWARD = {"loss": None, "accuracy": None, **STEP_METRICS}


class PlainProgress:
    """Writes lines to a log."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        seconds_between_steps: float = 1.0,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._between = seconds_between_steps
        # Clock time before which no further step is written.
        self._next = float("-inf")
        self._pace = Pace()
        self._total_steps = 0
        # The last step, if it was not written.
        self._skipped: StepRecord | None = None

    def begin(self, run: RunRecord) -> None:
        """Write job, algorithm, devices and folder."""
        self._total_steps = run.total_steps
        self._line(
            "run",
            job=run.job,
            algorithm=run.algorithm,
            devices=_word(run.devices),
            steps=run.total_steps,
            output=_word(run.output),
        )

    def startup(self, phase: str, seconds: float) -> None:
        """Write a finished start-up phase."""
        self._line("startup", phase=_word(phase), seconds=f"{seconds:.2f}")

    def warm_start(self, record: WarmStartRecord) -> None:
        """Write a warm-start step, at most one a second besides those that were evaluated."""
        is_evaluated = any(name.startswith("evaluation/") for name in record.metrics)
        if is_evaluated or self._due():
            fields = {name.replace("/", "_"): _number(v) for name, v in record.metrics.items()}
            self._line("warm_start", step=record.step, **fields)

    def step(self, record: StepRecord) -> None:
        """Write a step if a second has passed since the last one, or if it is the last of all."""
        self._pace.add(record.seconds)
        if self._due() or record.step == self._total_steps:
            self._write_step(record)
        else:
            self._skipped = record

    def evaluation(self, record: EvaluationRecord) -> None:
        """Write an evaluation."""
        fields = {
            name.removeprefix("evaluation/"): _number(v) for name, v in record.metrics.items()
        }
        self._line("evaluation", step=record.step, **fields)

    def saved(self, step: int, address: str) -> None:
        """Write that a checkpoint was written."""
        self._line("checkpoint", step=step)

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        """Write that the checkpoint of a step could not be written."""
        self.notice(message)

    def waiting_for_space(self, message: str) -> None:
        """Write why the run waits, and the end of the wait."""
        self.notice(message or SPACE_FREE)

    def resumed(self, step: int, address: str) -> None:
        """Write the checkpoint from which the run resumes."""
        self.notice(resumed_text(step))

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """Write the cause of a restart."""
        self.notice(restart_text(number, seconds, reason, message))

    def notice(self, text: str) -> None:
        """Write a text, on one line."""
        self._write("notice " + " ".join(text.split()))

    def finish(self, summary: Summary, files: Sequence[Path] = ()) -> None:
        """Write the last step if it was skipped, the outcome, and each file."""
        # Otherwise the log of a run that ended early would lack its last step.
        if self._skipped is not None:
            self._write_step(self._skipped)
        fields: dict[str, object] = {"outcome": summary.outcome.value}
        if summary.reason:
            fields["reason"] = summary.reason
        fields["steps"] = f"{summary.steps}/{summary.total_steps}"
        for name, change in (
            ("exact_match", summary.exact_match),
            ("reward", summary.reward),
        ):
            if change is not None:
                fields[f"{name}_first"] = _number(change.first)
                fields[f"{name}_last"] = _number(change.last)
                fields[f"{name}_best"] = _number(change.best)
        fields["training_seconds"] = f"{summary.training_seconds:.1f}"
        if summary.total_seconds is not None:
            fields["total_seconds"] = f"{summary.total_seconds:.1f}"
        self._line("finished", **fields)
        for phase, seconds in summary.phase_seconds.items():
            self._line("phase", name=_word(phase), seconds=f"{seconds:.1f}")
        for path in files:
            self._line("wrote", file=_word(str(path)))

    def close(self) -> None:
        """Flush; the stream stays open, it belongs to the caller."""
        self._stream.flush()

    def _due(self) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._between
        return True

    def _write_step(self, record: StepRecord) -> None:
        self._skipped = None
        fields: dict[str, object] = {"step": f"{record.step}/{self._total_steps}"}
        shown = STEP_METRICS if REWARD_MEAN in record.metrics else WITHOUT_REWARD
        for field, named in shown.items():
            metric = named or role_metric(record.metrics, field)
            if metric is not None and metric in record.metrics:
                fields[field] = _number(record.metrics[metric])
        fields["seconds"] = f"{record.seconds:.3f}"
        remaining = self._pace.remaining(self._total_steps - record.step)
        if remaining is not None:
            fields["eta_seconds"] = f"{remaining:.0f}"
        for phase, seconds in record.phases.items():
            fields[_word(phase)] = f"{seconds:.3f}"
        self._line("train", **fields)

    def _line(self, kind: str, /, **fields: object) -> None:
        self._write(" ".join([kind, *(f"{name}={value}" for name, value in fields.items())]))

    def _write(self, line: str) -> None:
        # A pipe is buffered: without a flush its reader would see lines late.
        self._stream.write(line + "\n")
        self._stream.flush()


def _number(value: float) -> str:
    return f"{value:.5g}"


def _word(text: str) -> str:
    """The text as one field: no blanks in it."""
    return "_".join(text.split())
