"""What the controller tells telemetry: one frozen record per event of a run.

Times are Unix seconds, durations seconds, memory bytes. Metric names are those of `metric_names`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Span:
    """Who did what when."""

    process: str
    """Where: `rank 0`, `reward`, `data`, `driver`."""
    role: str
    """For which role: `actor`, `reference`, `critic`, `reward`; empty where no role is meant."""
    call: str
    """What: `generate`, `train`, `score`."""
    start: float
    """Unix seconds."""
    end: float
    """Unix seconds."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class RunRecord:
    """The start of a run, or of its continuation."""

    job: str
    """The job's name."""
    algorithm: str
    """The algorithm's type, such as `GRPO`."""
    devices: str
    """What it runs on, for people: `2 CPU ranks`."""
    output: str
    """The run's folder."""
    total_steps: int
    """Steps that the schedule asks for."""
    started: float
    """Unix seconds."""
    warm_start_steps: int = 0
    """Most steps of the supervised warm start; 0: none."""
    command: str = ""
    """The command line that repeats the run."""
    workers_started: float = 0.0
    """Unix time at which the start of these workers began: later than `started` after a restart."""


@dataclass(frozen=True)
class ResumedRecord:
    """Workers go on from a checkpoint."""

    step: int
    """Training steps that it has behind it."""


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
    """From 1."""
    metrics: Mapping[str, float]
    """By metric name."""
    phases: Mapping[str, float]
    """Seconds per phase: generate, score, infer, compute, train, transition, evaluate."""
    seconds: float
    """The whole step."""
    tokens: int
    """Prompt and response tokens that the step trained on."""
    spans: Sequence[Span] = ()
    """Who did what when."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Resident bytes per process."""
    finished: float = 0.0
    """Unix seconds at which it was told; 0 in records that were written before."""


@dataclass(frozen=True)
class EvaluationRecord:
    """Held-out prompts answered and scored after `step` training steps; 0 is before training."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class UnscoredRecord:
    """A response that a verifier could not score, or a batch of them."""

    step: int
    """The training step; an evaluation's, after so many."""
    reward: str
    """The reward's name."""
    fault: str
    """Of rewards.messages.Fault."""
    what: str
    """Which response; of a batch the first one."""
    row: str
    """The row of the data that it answers, by file and line."""
    detail: str
    """Why, in words."""


class Outcome(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNFINISHED = "unfinished"
    """Still running, or killed without a word."""


@dataclass(frozen=True)
class EndRecord:
    """The end of a run."""

    outcome: Outcome
    finished: float
    """Unix seconds."""
    reason: str = ""
    """The error's stable reason; empty on success."""
    message: str = ""
    """The error's message; empty on success."""


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
    """Everything that a run's files say, in order of steps, the last record of a step only."""

    runs: tuple[RunRecord, ...] = ()
    """One for each start of workers: more than one for a resumed run. Those of one command have
    `started` in common."""
    total_seconds: float = 0.0
    """Of all commands together, each from its start to its end, or to its last step where it was
    killed."""
    resumed_from: int = 0
    """The step of the checkpoint from which the last start of workers went on; 0: none."""
    startup: StartupRecord | None = None
    """Of the last start."""
    warm_start: tuple[WarmStartRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    """Without spans when read from files; see `RunFolder.read_spans`."""
    steps_of_last_start: tuple[StepRecord, ...] = ()
    """Of these, those that the last start of workers ran: under the plan in force."""
    evaluations: tuple[EvaluationRecord, ...] = ()
    end: EndRecord | None = None
    """None while the last start has not ended."""
    steps_repeated: int = 0
    """Step records that a later record of the same step replaced."""
    damaged_lines: int = 0
    """Lines of metrics.jsonl that could not be read."""
    unscored: tuple[UnscoredRecord, ...] = ()
    """As they were found; of many not all."""
