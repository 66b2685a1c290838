"""bench-learning: do examples 01 and 02 learn, for every seed?

Each run is `rlhf run` as a user types it. A run passes if held-out exact match starts at 0.55 or
below and reaches 0.9 within 300 seconds of reinforcement learning, evaluations not counted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outcome import note, print_json, print_table

from rlhf_runtime.telemetry.records import RunRecords
from runs import exact_match_at, rlhf_run, training_seconds

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FILES = {"01": "01-sort-grpo.yaml", "02": "02-sort-ppo.yaml"}
START_AT_MOST, GOAL, SECONDS = 0.55, 0.9, 300.0


@dataclass(frozen=True)
class Learned:
    """How one run went."""

    example: str
    seed: int
    exact_match: dict[int, float]
    seconds_to_goal: float | None
    """Seconds of reinforcement learning until exact match was first measured at the goal."""
    seconds: float
    peak_mebibytes: float

    @property
    def passed(self) -> bool:
        """Started low enough, and got there in time."""
        in_time = self.seconds_to_goal is not None and self.seconds_to_goal <= SECONDS
        return self.exact_match[0] <= START_AT_MOST and in_time


def learn(example: str, seed: int, devices: int, steps: int | None, folder: Path) -> Learned:
    """One run."""
    output = folder / f"example-{example}-seed-{seed}"
    options = [f"--seed={seed}", f"--devices={devices}"]
    options += [] if steps is None else [f"--steps={steps}"]
    records, finished = rlhf_run(EXAMPLES / FILES[example], output, options)
    return Learned(
        example,
        seed,
        exact_match_at(records),
        seconds_to_goal(records),
        training_seconds(records),
        finished.peak_mebibytes,
    )


def seconds_to_goal(records: RunRecords) -> float | None:
    """Seconds of training steps up to the first evaluation that reaches the goal."""
    for step, value in sorted(exact_match_at(records).items()):
        if value >= GOAL:
            return sum(record.seconds for record in records.steps if record.step <= step)
    return None


def report(runs: list[Learned], devices: int) -> None:
    """Table, verdict, JSON."""
    steps = sorted({step for run in runs for step in run.exact_match})
    header = ["example seed", *(f"s{step}" for step in steps), "to 0.9 s", "RL s", "MiB", "passed"]
    rows = [
        [
            f"{run.example} {run.seed}",
            *(_fraction(run.exact_match.get(step)) for step in steps),
            run.seconds_to_goal,
            run.seconds,
            run.peak_mebibytes,
            "yes" if run.passed else "NO",
        ]
        for run in runs
    ]
    print_table(header, rows)
    passed = sum(run.passed for run in runs)
    print(f"{passed} of {len(runs)} runs went from at most 0.55 to 0.9 within 300 s of training")
    listed = [
        {
            "example": run.example,
            "seed": run.seed,
            "exact_match": run.exact_match,
            "seconds_to_goal": run.seconds_to_goal,
            "seconds": run.seconds,
            "peak_mebibytes": run.peak_mebibytes,
            "passed": run.passed,
        }
        for run in runs
    ]
    print_json("learning", devices=devices, passed=passed, runs=listed)


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--examples", choices=sorted(FILES), nargs="+", default=sorted(FILES))
    parser.add_argument("--devices", type=int, default=1, help="ranks (default 1)")
    parser.add_argument("--steps", type=int, help="instead of the examples' own")
    parser.add_argument("--output", type=Path, help="keep the runs here (default: nowhere)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-learning-") as scratch:
        folder = (options.output or Path(scratch)).resolve()
        runs = []
        for example in options.examples:
            for seed in options.seeds:
                note(f"example {example}, seed {seed} (load {os.getloadavg()[0]:.1f})")
                runs.append(learn(example, seed, options.devices, options.steps, folder))
        report(runs, options.devices)


if __name__ == "__main__":
    main()
