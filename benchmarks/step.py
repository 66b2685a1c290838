"""bench-step: a full GRPO step of example 01 against a plain loop in one process.

Ours is a complete job: Ray, controller, workers, passes submitted ahead, files. The two sides run a
few steps in turns; the plain loop is a child process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from command_line import make_parser, parse
from memory import end_of
from outcome import (
    milliseconds,
    note,
    paired_ratio,
    phase_medians,
    print_json,
    print_table,
    verdict,
)

from rlhf_api.plan import GraphName, Plan
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.jobs.job_graphs import reward_roles, trace_algorithms
from rlhf_planner.plan import make_plan, pools_of
from rlhf_planner.simulation.event_graph import PASSES_AHEAD
from rlhf_runtime.controller.optimizers import training_settings
from rlhf_runtime.controller.pass_records import step_record
from rlhf_runtime.controller.steps import PassRunner, SubmittedPass
from rlhf_runtime.controller.training_passes import keep_ahead
from rlhf_runtime.controller.worker_sites import OneMachine, Site
from rlhf_runtime.controller.workers import Workers, WorkerSettings
from rlhf_runtime.forkserver.standby import choose_fork_server
from rlhf_runtime.telemetry.plain_progress import PlainProgress
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import RunRecorder
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.trackers import make_trackers
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


class OurRun:
    """Our workers and driver; they run blocks of steps as a job does."""

    def __init__(
        self, job: RLHFJob, plan: Plan, settings: WorkerSettings, recorder: RunRecorder, site: Site
    ) -> None:
        self._recorder = recorder
        traced = trace_algorithms(job, plan.device)[GraphName.STEP]
        self._algorithm = traced.algorithm
        self._rewards = reward_roles(traced.graph)
        self._workers = Workers(job, plan, settings, site)
        self._workers.build(recorder.started)
        rates = training_settings(job.spec, plan.policy, traced.graph)
        self._workers.call_role(plan.policy, "use_optimizer", plan.policy, rates)
        self._stepper = PassRunner(self._workers, {GraphName.STEP: traced.graph})
        self._step = 0
        self.records: list[dict[str, float]] = []

    def block(self, count: int) -> float:
        """Run `count` steps; returns the mean seconds of one.

        Measured from the first submitted call to the last written record.
        """
        begin = time.perf_counter()
        keep_ahead(map(self._submit, range(count)), self._finish, PASSES_AHEAD)
        return (time.perf_counter() - begin) / count

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def _submit(self, _number: int) -> tuple[int, SubmittedPass]:
        self._step += 1
        return self._step, self._stepper.train(self._algorithm, self._step)

    def _finish(self, numbered: tuple[int, SubmittedPass]) -> None:
        step, submitted = numbered
        record = step_record(step, self._stepper.wait(submitted), self._rewards)
        self._recorder.step(record)
        self.records.append(dict(record.phases))


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
    run_folder = RunFolder(folder / "run")
    trackers = make_trackers(job.spec.telemetry, TrackedRun.of(job, run_folder.path))
    recorder = RunRecorder(run_folder, PlainProgress(StringIO()), trackers)
    settings = WorkerSettings(
        models=folder / "models",
        logs=folder / "logs",
        python_path=(),  # the example has no code of its own
        threads_per_rank=threads,
        timeout_seconds=600.0,
    )
    fork_server, _ = choose_fork_server(plan.device, plan.standby)
    site = OneMachine(fork_server)
    try:
        site.open(plan.pools)
        ours = OurRun(job, plan, settings, recorder, site)
        try:
            baseline.wait_until_ready()
            note(f"{blocks} blocks of {steps} steps each, in turns")
            return _in_turns(ours, baseline, blocks, steps)
        finally:
            ours.close()
    finally:
        site.close()
        fork_server.close()
        recorder.close()
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
    measured.our_phases = ours.records
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


def report(measured: Measured, options: argparse.Namespace) -> None:
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
    print_json(
        "step",
        smallest=options.smallest,
        ratio=ratio,
        target=TARGET,
        ours=left,
        baseline=right,
    )


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=8, help="turns per side (default 8)")
    parser.add_argument("--steps", type=int, default=5, help="steps per turn (default 5)")
    parser.add_argument(
        "--warm-steps", type=int, default=32, help="steps of the warm start (default 32)"
    )
    parser.add_argument("--output", type=Path, help="keep models and logs here (default: nowhere)")
    options = parse(parser, blocks=1, steps=1, warm_steps=1)
    if options.output is not None:
        options.output.mkdir(parents=True)
        report(measure(options, options.output.resolve()), options)
        return
    with tempfile.TemporaryDirectory(prefix="bench-step-") as folder:
        report(measure(options, Path(folder)), options)


if __name__ == "__main__":
    main()
