"""The part of bench-step with a slow verifier: rollouts against generation alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from our_run import OurRun, our_run
from outcome import milliseconds, note, paired_ratio, print_table, verdict

from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.job import RLHFJob
from rlhf_planner.plan import make_plan, pools_of
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.telemetry.records import Span

HERE = Path(__file__).resolve().parent
TARGET = 1.1
# Seconds for a sample.
SECONDS = 0.5


@dataclass
class SlowScoring:
    """Seconds from the first token to the last score, by step."""

    alone: list[float] = field(default_factory=list)
    """With a verifier that answers at once."""
    ours: list[float] = field(default_factory=list)
    """With the slow one."""
    early: list[float] = field(default_factory=list)
    """Time in which it scored while responses were generated."""
    rows: int = 0

    @property
    def ratio(self) -> float:
        """Rollout with the slow verifier over rollout with the other."""
        return paired_ratio(self.ours, self.alone)


def measure_slow_scoring(example: Path, options: argparse.Namespace, folder: Path) -> SlowScoring:
    """Run steps of the example with either verifier, in turns, from random weights.

    Args:
        example: manifest.
        options: the command line.
        folder: for the run and logs.
    """
    folder.mkdir()
    seconds = folder / "seconds"
    job = _job(example, options, seconds)
    _, plan = make_plan(job, pools_of(job, 1))
    measured = SlowScoring(rows=options.prompts * job.spec.rollout.samples_per_prompt)
    note(f"slow verifier: {options.processes} processes, {SECONDS} s a sample")
    seconds.write_text("0")
    with our_run(job, plan, folder, PythonPath((str(HERE),))) as ours:
        ours.block(1)  # allocates memory
        # In turns, so that a slow minute of the machine slows both.
        for _ in range(options.slow_steps):
            for kind, sleep in ((measured.alone, 0.0), (measured.ours, SECONDS)):
                seconds.write_text(str(sleep))
                spans = _step(ours)
                kind.append(_seconds(spans, ("generate", "score")))
            measured.early.append(_seconds(spans, ("score_early",)))
    return measured


def report_slow_scoring(measured: SlowScoring, options: argparse.Namespace) -> None:
    """Print table and verdict."""
    # A verifier that begins when the last response has ended.
    rounds = -(-measured.rows // options.processes)
    alone = milliseconds(measured.alone)
    print_table(
        ["median ms of a rollout", "ours"],
        [
            ["generation alone", alone],
            ["slow verifier", milliseconds(measured.ours)],
            ["of it scored early", milliseconds(measured.early)],
            ["one after the other", alone + 1000 * SECONDS * rounds],
        ],
    )
    name = f"rollout with a slow verifier, {options.slow_steps} steps"
    print(verdict(name, measured.ratio, TARGET, smallest=options.smallest))


def _job(example: Path, options: argparse.Namespace, seconds: Path) -> RLHFJob:
    function = {
        "entrypoint": "slow_verifier:score",
        "parameters": {"file": str(seconds)},
        "batchSize": 1,
        "processes": options.processes,
    }
    # Random weights end responses at random: most are short, a few are long.
    changes = [
        "spec.schedule.warmStart=null",
        "spec.schedule.evaluateEverySteps=0",
        f"spec.schedule.promptsPerStep={options.prompts}",
        f"spec.rollout.maxResponseTokens={options.response_tokens}",
        f"spec.rollout.maxConcurrentSequences={options.sequences}",
        f"spec.rewards=[{{function: {json.dumps(function)}}}]",
    ]
    (job,) = load_file(example, changes)
    return job


def _step(ours: OurRun) -> Sequence[Span]:
    ours.block(1)
    return ours.records[-1].spans


def _seconds(spans: Sequence[Span], calls: Sequence[str]) -> float:
    """Return the seconds from the first start to the last end of some calls."""
    own = [span for span in spans if span.call in calls]
    return max(span.end for span in own) - min(span.start for span in own)
