"""Records: one frozen object per event of a run, from the controller to telemetry; RecordLog.

Times are Unix seconds, durations seconds, memory bytes. Metric names are those of `metric_names`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Span:
    """The time of a call in a process."""

    process: str
    """`rank 0`, `reward`, `data`, `driver`."""
    role: str
    """`actor`, `reference`, `critic`, `reward`; empty for calls without a role."""
    call: str
    """`generate`, `train`, `score`."""
    start: float
    """Unix seconds."""
    end: float
    """Unix seconds."""

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.end - self.start


@dataclass(frozen=True)
class RunRecord:
    """The start of a run, or of its continuation."""

    job: str
    algorithm: str
    """The algorithm's type, such as `GRPO`."""
    devices: str
    """Devices in words: `2 CPU ranks`."""
    output: str
    """The run's folder."""
    total_steps: int
    """Steps of the schedule; 0: an evaluation without training."""
    started: float
    """Unix seconds."""
    warm_start_steps: int = 0
    """Maximum number of steps of the supervised warm start; 0: none."""
    command: str = ""
    """The command line that repeats the run."""
    workers_started: float = 0.0
    """Unix time of the start of these workers: later than `started` after a restart."""
    code: str = ""
    """Digest of the user's code. Empty: not known."""
    packages: Sequence[str] = ()
    """NAME==VERSION of what was installed for the code."""

    @property
    def is_evaluation(self) -> bool:
        """True if nothing was trained: `rlhf evaluate` wrote it."""
        return self.total_steps == 0


@dataclass(frozen=True)
class ResumedRecord:
    """Workers resume from a checkpoint."""

    step: int
    """Training steps before the checkpoint."""


@dataclass(frozen=True)
class StartupRecord:
    """Seconds of each phase from the command to the first step; phases may overlap."""

    phases: Mapping[str, float]


@dataclass(frozen=True)
class WarmStartRecord:
    """A step of the supervised warm start."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class StepRecord:
    """A training step."""

    step: int
    """Number of the step, from 1."""
    metrics: Mapping[str, float]
    """By metric name."""
    phases: Mapping[str, float]
    """Seconds per phase: generate, score, infer, compute, train, transition, evaluate."""
    seconds: float
    """The complete step."""
    tokens: int
    """Prompt and response tokens that the step trained on."""
    spans: Sequence[Span] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    """Resident bytes per process."""
    finished: float = 0.0
    """Unix seconds of the record; 0 in records of older releases."""


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation after `step` training steps; 0: before training."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class UnscoredRecord:
    """A response that a verifier could not score, or a batch of them."""

    step: int
    """The training step; for an evaluation, the number of steps before it."""
    reward: str
    fault: str
    """A Fault of the rewards, by its value."""
    what: str
    """The response, or the first one of a batch."""
    row: str
    """The row of the data that it answers, by file and line."""
    detail: str
    """The cause, in words."""


class Outcome(StrEnum):
    """The result of a run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNFINISHED = "unfinished"
    """Still running, or killed."""


EARLY_STOP = "EarlyStop"
"""Reason of a success before the last step."""


@dataclass(frozen=True)
class EndRecord:
    """The end of a run."""

    outcome: Outcome
    finished: float
    """Unix seconds."""
    reason: str = ""
    """The error's stable reason; empty on success, or EARLY_STOP."""
    message: str = ""
    """The error's message; empty on success after all steps."""
    model_step: int | None = None
    """Step whose weights the final model has. None: no model was saved, or an earlier release saved
    it."""


Record = (
    RunRecord
    | ResumedRecord
    | StartupRecord
    | WarmStartRecord
    | StepRecord
    | EvaluationRecord
    | UnscoredRecord
    | EndRecord
)


@dataclass(frozen=True)
class RunRecords:
    """All records of a run, in order of steps; of a repeated step the last one."""

    runs: tuple[RunRecord, ...] = ()
    """One per start of workers. Starts by the same command have equal `started`."""
    total_seconds: float = 0.0
    """Sum over commands, each from its start to its end, or to its last step if it was killed."""
    resumed_from: int = 0
    """Step of the checkpoint from which the last start of workers resumed; 0: none."""
    startup: StartupRecord | None = None
    """Record of the last start."""
    warm_start: tuple[WarmStartRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    """Without spans when read from files; see `RunFolder.read_spans`."""
    last_start_steps: tuple[StepRecord, ...] = ()
    """Steps of the last start of workers, which ran under the current plan."""
    evaluations: tuple[EvaluationRecord, ...] = ()
    end: EndRecord | None = None
    """None while the last start has not ended."""
    model_step: int | None = None
    """Step whose weights the final model has. None: there is none, or an earlier release saved
    it."""
    steps_repeated: int = 0
    """Step records that a later record of the same step replaced."""
    damaged_lines: int = 0
    """Lines of metrics.jsonl that could not be read."""
    unscored: tuple[UnscoredRecord, ...] = ()
    """In order of time; limited in number."""

    @property
    def reached_step(self) -> int:
        """Last step of the last start of workers; of earlier ones if that has none yet."""
        # An earlier start may have gone further than the checkpoint from which the last resumed.
        last_start = max([self.resumed_from, *(step.step for step in self.last_start_steps)])
        return last_start or (self.steps[-1].step if self.steps else 0)


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
        self._model_step: int | None = None
        # Time at which a command was last alive, by its start.
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
                # A run that resumed repeats the steps after its checkpoint.
                self._repeated += record.step in self._steps
                # Spans of a long run would take too much memory.
                self._steps[record.step] = dataclasses.replace(record, spans=())
                self._last_start_steps.add(record.step)
                self._extend_command(record.finished)
            case EvaluationRecord():
                self._evaluations[record.step] = record
            case UnscoredRecord():
                self._unscored[record] = None  # once, though the step was repeated
            case EndRecord():
                self._end = record
                if record.model_step is not None:
                    self._model_step = record.model_step
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
            model_step=self._model_step,
            steps_repeated=self._repeated,
            damaged_lines=self._damaged,
        )
