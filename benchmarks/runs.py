"""Runs `rlhf run` as a user would, and reads what it wrote.

Its workers are forked from no `rlhf standby` but one that the benchmark has started, or that
RLHF_STANDBY names.
"""

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

ENVIRONMENT = {"RLHF_STANDBY": f"benchmark {os.getpid()}"} | os.environ
"""Variables of commands. They share a fork server with nobody else, unless RLHF_STANDBY is set."""
RLHF = Path(sys.executable).with_name("rlhf")
EXACT_MATCH = "evaluation/exact_match"


def rlhf_run(
    manifest: Path, output: Path, options: Sequence[str] = ()
) -> tuple[RunRecords, Finished]:
    """Run a manifest into a new folder; its records, and the memory that it took.

    Raises:
        RuntimeError: it failed; the message has the end of its log.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    log = output.with_name(output.name + ".log")
    command = [str(RLHF), "run", str(manifest), f"--output={output}", *options]
    finished = run_and_weigh(command, log, ENVIRONMENT)
    return RunFolder(output).read(), finished


def step_seconds(records: RunRecords, skip: int = 3) -> list[float]:
    """Seconds of every step but the first ones, in which memory is allocated."""
    return [step.seconds for step in records.steps[skip:]]


def training_seconds(records: RunRecords) -> float:
    """Seconds of reinforcement learning: all training steps, without evaluations."""
    return sum(step.seconds for step in records.steps)


def exact_match_at(records: RunRecords) -> dict[int, float]:
    """Held-out exact match by step."""
    return {
        record.step: record.metrics[EXACT_MATCH]
        for record in records.evaluations
        if EXACT_MATCH in record.metrics
    }


def median_of(values: Sequence[float]) -> float:
    """The median; 0 for nothing."""
    return statistics.median(values) if values else 0.0


def quiet(command: Sequence[str]) -> None:
    """Run a command whose output nobody needs.

    Raises:
        RuntimeError: it failed; the message has its stderr.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def start_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser of a benchmark of starts: `runs` and `devices`."""
    parser = make_parser(about)
    parser.add_argument("--runs", type=int, default=3, help="of each kind (default 3)")
    parser.add_argument("--devices", type=int, default=1, help="ranks (default 1)")
    return parser
