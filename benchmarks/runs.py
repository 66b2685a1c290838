"""Runs `rlhf run` as a user would, and reads the files of the run."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from command_line import make_parser
from memory import Finished, run_and_weigh

from rlhf_runtime.telemetry.records import RunRecords
from rlhf_runtime.telemetry.run_folder import RunFolder

# A user's own `rlhf standby` would shorten starts: commands fork workers only from one that the
# benchmark has started, or that RLHF_STANDBY names.
ENVIRONMENT = {"RLHF_STANDBY": f"benchmark {os.getpid()}"} | os.environ
"""Environment variables of commands."""
RLHF = Path(sys.executable).with_name("rlhf")
EXACT_MATCH = "evaluation/exact_match"


def rlhf_run(
    manifest: Path, output: Path, options: Sequence[str] = ()
) -> tuple[RunRecords, Finished]:
    """Run a manifest into a new folder; returns its records and peak memory.

    Raises:
        RuntimeError: it failed; the message has the end of its log.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, which is the command's.
    log = output.with_name(output.name + ".log")
    command = [str(RLHF), "run", str(manifest), f"--output={output}", *options]
    finished = run_and_weigh(command, log, ENVIRONMENT)
    return RunFolder(output).read(), finished


def step_seconds(records: RunRecords, skip: int = 3) -> list[float]:
    """Seconds of steps, without the first `skip`."""
    # The first steps allocate memory.
    return [step.seconds for step in records.steps[skip:]]


def training_seconds(records: RunRecords) -> float:
    """Seconds of all training steps, without evaluations."""
    return sum(step.seconds for step in records.steps)


def exact_match_at(records: RunRecords) -> dict[int, float]:
    """Held-out exact match by step."""
    return {
        record.step: record.metrics[EXACT_MATCH]
        for record in records.evaluations
        if EXACT_MATCH in record.metrics
    }


def median_of(values: Sequence[float]) -> float:
    """Median; 0 without values."""
    return statistics.median(values) if values else 0.0


def quiet(command: Sequence[str]) -> None:
    """Run a command and discard its output.

    Raises:
        RuntimeError: it failed; the message has its stderr.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def start_parser(about: str | None) -> argparse.ArgumentParser:
    """Make a parser for benchmarks of starts: `--runs` and `--devices`."""
    parser = make_parser(about)
    parser.add_argument("--runs", type=int, default=3, help="runs per kind (default 3)")
    parser.add_argument("--devices", type=int, default=1, help="ranks (default 1)")
    return parser
