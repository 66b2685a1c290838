"""bench-step: a full GRPO step of example 01 against a plain loop in one process.

Ours is a complete job: Ray, controller, workers, passes submitted ahead, files. The two sides run a
few steps in turns; the plain loop is a child process. Another part has a verifier that takes half a
second for each sample: from the first token to the last score, against generation alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from command_line import make_parser, parse
from memory import end_of
from our_run import OurRun, our_run
from outcome import (
    milliseconds,
    note,
    paired_ratio,
    phase_medians,
    print_json,
    print_table,
    verdict,
)
from slow_scoring import TARGET as SLOW_TARGET
from slow_scoring import SlowScoring, measure_slow_scoring, report_slow_scoring

from rlhf_api.plan import Plan
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.job import RLHFJob
from rlhf_planner.plan import make_plan, pools_of
from runs import quiet

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "01-sort-grpo.yaml"
TARGET = 1.15


class PlainLoop:
    """Child process with the baseline."""

    def __init__(self, model: Path, plan: Plan, threads: int, log: Path) -> None:
        (generation,) = plan.generations
        command = [
            sys.executable,
            str(HERE / "plain_loop.py"),
            str(model),
            f"--threads={threads}",
            f"--max-num-seqs={generation.max_concurrent_sequences}",
            f"--kv-cache-bytes={generation.kv_cache_bytes}",
        ]
        self._log = log.open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )

    def wait_until_ready(self) -> None:
        """Wait for model and engine of the child."""
        self._read()

    def step(self) -> dict[str, float]:
        """Run one step; returns seconds by phase."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the child."""
        # It steps until its stdin ends.
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the plain loop ended:\n{end_of(Path(self._log.name))}")
        answer: dict[str, float] = json.loads(line)
        return answer


@dataclass
class Measured:
    """Mean seconds of a step by block, and seconds by phase of every step, of both sides."""

    ours: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    our_phases: list[dict[str, float]] = field(default_factory=list)
    baseline_phases: list[dict[str, float]] = field(default_factory=list)


def measure(options: argparse.Namespace, folder: Path) -> Measured:
    """Run both sides in turns.

    Args:
        options: the command line.
        folder: for the model, our run and logs.
    """
    blocks, steps = options.blocks, options.steps
    model = folder / "warm"
    note("making a warm-started model for both")
    program = [sys.executable, str(HERE / "warm_model.py"), str(model)]
    quiet([*program, f"--steps={options.warm_steps}"])
    job = job_from(EXAMPLE, model, (blocks + 1) * steps)  # one block does not count
    _, plan = make_plan(job, pools_of(job, 1))
    threads = len(os.sched_getaffinity(0))
    # Both start at the same time; one waits for the other before anything is measured.
    note("starting the plain loop, and our workers beside it")
    baseline = PlainLoop(model, plan, threads, folder / "plain_loop.log")
    try:
        with our_run(job, plan, folder) as ours:
            baseline.wait_until_ready()
            note(f"{blocks} blocks of {steps} steps each, in turns")
            return _in_turns(ours, baseline, blocks, steps)
    finally:
        baseline.close()


def _in_turns(ours: OurRun, baseline: PlainLoop, blocks: int, steps: int) -> Measured:
    """Run blocks of both sides in turns."""
    # In turns, so that a slow minute of the machine slows both. The first block does not count:
    # memory is allocated and modules are imported.
    measured = Measured()
    for number in range(blocks + 1):
        our_seconds = ours.block(steps)
        records = [baseline.step() for _ in range(steps)]
        if number == 0:
            ours.records.clear()
            continue
        measured.ours.append(our_seconds)
        measured.baseline.append(statistics.fmean(record["step"] for record in records))
        measured.baseline_phases.extend(records)
    measured.our_phases = [dict(record.phases) for record in ours.records]
    return measured


def job_from(example: Path, model: Path, steps: int) -> RLHFJob:
    """Job of the example, from a warm-started model and without evaluations."""
    changes = [
        "spec.schedule.warmStart=null",
        "spec.schedule.evaluateEverySteps=0",
        f"spec.schedule.steps={steps}",
        f"spec.models.actor.source={{path: {json.dumps(str(model))}}}",
    ]
    (job,) = load_file(example, changes)
    return job


def report(measured: Measured, slow: SlowScoring, options: argparse.Namespace) -> None:
    """Print table, verdict and JSON."""
    left, right = phase_medians(measured.our_phases), phase_medians(measured.baseline_phases)
    del right["step"], right["reward"]
    # Phases do not cover a step: ours is measured over blocks, the baseline's has gaps.
    for phases, steps in ((left, measured.ours), (right, measured.baseline)):
        step = milliseconds(steps)
        phases.update(rest=step - sum(phases.values()), step=step)
    print_table(
        ["median ms", "ours", "plain loop"],
        [[name, left.get(name), right.get(name)] for name in [*left][:-2] + ["rest", "step"]],
    )
    ratio = paired_ratio(measured.ours, measured.baseline)
    name = f"step, {options.blocks} blocks of {options.steps}"
    print(verdict(name, ratio, TARGET, smallest=options.smallest))
    report_slow_scoring(slow, options)
    print_json(
        "step",
        smallest=options.smallest,
        ratio=ratio,
        target=TARGET,
        ours=left,
        baseline=right,
        slow_ratio=slow.ratio,
        slow_target=SLOW_TARGET,
    )


def measure_all(options: argparse.Namespace, folder: Path) -> None:
    """Run both parts and report."""
    measured = measure(options, folder)
    report(measured, measure_slow_scoring(EXAMPLE, options, folder / "slow"), options)


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=8, help="turns per side (default 8)")
    parser.add_argument("--steps", type=int, default=5, help="steps per turn (default 5)")
    parser.add_argument(
        "--warm-steps", type=int, default=32, help="steps of the warm start (default 32)"
    )
    parser.add_argument(
        "--slow-steps", type=int, default=3, help="steps with a slow verifier (default 3)"
    )
    parser.add_argument(
        "--processes", type=int, default=64, help="processes of the slow verifier (default 64)"
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=96,
        help="prompts of its steps, 8 samples each (default 96)",
    )
    parser.add_argument(
        "--response-tokens", type=int, default=512, help="of its responses at most (default 512)"
    )
    parser.add_argument(
        "--sequences", type=int, default=64, help="that generate at once there (default 64)"
    )
    parser.add_argument("--output", type=Path, help="keep models and logs here (default: nowhere)")
    options = parse(
        parser,
        blocks=1,
        steps=1,
        warm_steps=1,
        slow_steps=1,
        processes=2,
        prompts=2,
        response_tokens=32,
    )
    if options.output is not None:
        options.output.mkdir(parents=True)
        measure_all(options, options.output.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="bench-step-") as folder:
        measure_all(options, Path(folder))


if __name__ == "__main__":
    main()
