"""Runs as the controller would record them, small and made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_runtime.telemetry.records import (
    EndRecord,
    EvaluationRecord,
    Outcome,
    RunRecord,
    Span,
    StartupRecord,
    StepRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.run_folder import RunFolder

START = 1_700_000_000.0

MakeStep = Callable[..., StepRecord]
MakeRun = Callable[..., RunFolder]


def a_step(step: int, **changes: object) -> StepRecord:
    begin = START + step
    values: dict[str, object] = {
        "metrics": {"reward/mean": step / 100, "actor/kl": 0.01 * step, "score/invalid": 0.0},
        "phases": {"generate": 0.25, "score": 0.05, "train": 0.15},
        "seconds": 0.5,
        "tokens": 1000,
        "spans": (
            Span("rank 0", "actor", "generate", begin, begin + 0.25),
            Span("rank 0", "actor", "train", begin + 0.3, begin + 0.45),
            Span("reward", "reward", "score", begin + 0.25, begin + 0.3),
        ),
        "memory": {"driver": 200 << 20, "rank 0": (1 << 30) + step},
    }
    return StepRecord(step=step, **(values | changes))  # type: ignore[arg-type]


def a_run(output: Path, total_steps: int = 10) -> RunRecord:
    return RunRecord(
        job="sort-grpo",
        algorithm="GRPO",
        devices="2 CPU ranks",
        output=str(output),
        total_steps=total_steps,
        started=START,
        warm_start_steps=3,
        command="rlhf run job.yaml",
    )


@pytest.fixture
def make_step() -> MakeStep:
    return a_step


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A folder with a run of `steps` steps, by default finished and successful."""

    def make(steps: int = 10, outcome: Outcome | None = Outcome.SUCCEEDED) -> RunFolder:
        with RunFolder(tmp_path / "run") as folder:
            folder.append(a_run(folder.path, steps))
            folder.append(StartupRecord({"ray": 2.0, "engines": 8.0}))
            folder.append(WarmStartRecord(1, {"warm_start/loss": 2.0}))
            folder.append(WarmStartRecord(2, {"warm_start/loss": 1.0}))
            folder.append(EvaluationRecord(0, {"evaluation/exact_match": 0.25}))
            for step in range(1, steps + 1):
                folder.append(a_step(step))
            folder.append(EvaluationRecord(steps, {"evaluation/exact_match": 0.875}))
            if outcome is not None:
                why = ("OutOfMemory", "rank 1 <ran> out") if outcome is Outcome.FAILED else ()
                folder.append(EndRecord(outcome, START + 100, *why))
        return folder

    return make
