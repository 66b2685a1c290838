"""bench-learning: does every algorithm's example learn?

Each run is `rlhf run` as a user types it, with fewer steps than the example's own where those take
longer than a minute and a half. Examples with a warm start begin with a model that had it already,
one for each seed, which is kept. Runs are kept, too: given again, the benchmark goes on from where
it was. A run passes if held-out exact match (of a reward model: the share of pairs that it has
right) rises by at least the example's gain; a cost has to end below its budget as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from command_line import make_parser, parse
from outcome import note, print_json, print_table

from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_runtime.telemetry.records import RunRecords
from runs import exact_match_at, quiet, rlhf_run, training_seconds

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
KEPT = ROOT / "rlhf-runs" / "bench-learning"
SEVERAL_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Trial:
    """An example, and what is expected of it."""

    steps: int
    gain: float
    """By which held-out accuracy has to rise."""
    seeds: tuple[int, ...] = (0,)
    starts_from: str = ""
    """The example whose model it starts from."""
    scored_by: str = ""
    """The example whose model is its first reward."""
    devices: int = 1
    """Ranks that it needs."""


TRIALS = {
    "01": Trial(steps=120, gain=0.4, seeds=SEVERAL_SEEDS),
    "02": Trial(steps=80, gain=0.3, seeds=SEVERAL_SEEDS),
    "04": Trial(steps=60, gain=0.2),
    "05": Trial(steps=120, gain=0.4),
    "06": Trial(steps=120, gain=0.4),
    "07": Trial(steps=120, gain=0.3),
    "08": Trial(steps=160, gain=0.15, seeds=SEVERAL_SEEDS),
    "09": Trial(steps=84, gain=0.3, seeds=SEVERAL_SEEDS),
    "10": Trial(steps=40, gain=0.4),
    "11": Trial(steps=150, gain=0.3, starts_from="10"),
    "12": Trial(steps=40, gain=0.03, starts_from="10", scored_by="11"),
    "13": Trial(steps=120, gain=0.2),
    "14": Trial(steps=80, gain=0.04, starts_from="10"),
    "15": Trial(steps=120, gain=0.4, devices=4),
    "16": Trial(steps=120, gain=0.4, devices=4),
}
"""By the example's number."""


@dataclass(frozen=True)
class Learned:
    """How one run went."""

    example: str
    algorithm: str
    seed: int
    first: float
    """Held-out accuracy before."""
    last: float
    best: float
    reward: tuple[float, float] | None
    """Mean over the first and over the last ten steps."""
    cost: tuple[float, float, float] | None
    """The same of the cost, and its budget."""
    seconds: float
    """Of training steps, without evaluations."""

    @property
    def passed(self) -> bool:
        """Learned what was expected, and kept to its budget."""
        is_safe = self.cost is None or self.cost[1] <= self.cost[2]
        return is_safe and self.last >= self.first + TRIALS[self.example].gain


def example_of(number: str) -> Path:
    """An example's file."""
    (file,) = EXAMPLES.glob(f"{number}-*.yaml")
    return file


def learn(number: str, seed: int, folder: Path, steps: int | None) -> Learned:
    """One run, or what it came to before.

    Args:
        number: the example's.
        seed: of the job.
        folder: has all runs.
        steps: of every run. None: as many as its trial has.
    """
    file, trial = example_of(number), TRIALS[number]
    spec = yaml.safe_load(file.read_text())["spec"]
    options = [f"--seed={seed}", f"--steps={steps or trial.steps}", f"--devices={trial.devices}"]
    (role, *_) = spec["models"]
    if trial.starts_from:
        learn(trial.starts_from, seed, folder, steps)
        options += _source(role, run_folder(trial.starts_from, seed, folder) / "model")
    elif "warmStart" in spec["schedule"]:
        options += ["--set", "spec.schedule.warmStart=null"]
        options += _source(role, warm_model(seed, folder))
    if trial.scored_by:
        learn(trial.scored_by, seed, folder, steps)
        model = run_folder(trial.scored_by, seed, folder) / "model"
        options += ["--set", f"spec.rewards[0].model.path={model}"]
    records, _ = rlhf_run(file, run_folder(number, seed, folder), options)
    accuracy = list(accuracies(records).values())
    return Learned(
        number,
        spec["algorithm"]["type"],
        seed,
        accuracy[0],
        accuracy[-1],
        max(accuracy),
        ends_of(records, "reward/mean"),
        cost_of(records, spec["algorithm"]),
        training_seconds(records),
    )


def _source(role: str, model: Path) -> list[str]:
    return ["--set", f"spec.models.{role}.source={{path: {model.resolve()}}}"]


def run_folder(number: str, seed: int, folder: Path) -> Path:
    """Where a run is kept."""
    return folder / f"{example_of(number).stem}-seed-{seed}"


def warm_model(seed: int, folder: Path) -> Path:
    """The model that a seed's runs with a warm start begin with, made once."""
    made = folder / f"warm-model-seed-{seed}"
    if not made.exists():
        fresh = made.with_name(made.name + ".new")
        program = Path(__file__).with_name("warm_model.py")
        quiet([sys.executable, str(program), str(fresh), f"--seed={seed}"])
        fresh.rename(made)
    return made


def accuracies(records: RunRecords) -> dict[int, float]:
    """Held-out exact match by step; of a reward model the share of fresh pairs it has right."""
    of_pairs = {
        step.step: step.metrics[name]
        for step in records.steps
        for name in step.metrics
        if name.endswith("/accuracy")
    }
    return exact_match_at(records) or of_pairs


def ends_of(records: RunRecords, metric: str) -> tuple[float, float] | None:
    """A metric's means over the first and over the last ten steps; None: there is none."""
    values = [step.metrics[metric] for step in records.steps if metric in step.metrics]
    if not values:
        return None
    first, last = values[:10], values[-10:]
    return sum(first) / len(first), sum(last) / len(last)


def cost_of(
    records: RunRecords, algorithm: dict[str, dict[str, float]]
) -> tuple[float, float, float] | None:
    """A cost's ends, and its budget."""
    ends = ends_of(records, "cost/mean")
    if ends is None:
        return None
    settings = algorithm[AlgorithmType.SAFE_RLHF.settings_field]
    return *ends, settings["costBudget"]


def report(runs: list[Learned], smallest: bool) -> None:
    """Table, verdict, JSON."""
    passed = [None if smallest else run.passed for run in runs]
    header = ["example", "seed", "before", "after", "best", "reward", "cost", "RL s", "passed"]
    rows = [
        [
            f"{run.example} {run.algorithm}",
            run.seed,
            f"{run.first:.3f}",
            f"{run.last:.3f}",
            f"{run.best:.3f}",
            _ends(run.reward),
            "-" if run.cost is None else f"{_ends(run.cost[:2])} of {run.cost[2]:g}",
            run.seconds,
            {True: "yes", False: "NO", None: "not judged"}[has_passed],
        ]
        for run, has_passed in zip(runs, passed, strict=True)
    ]
    print_table(header, rows)
    if not smallest:
        print(f"{passed.count(True)} of {len(runs)} runs learned what was expected")
    print_json(
        "learning",
        smallest=smallest,
        runs=[vars(run) | {"passed": each} for run, each in zip(runs, passed, strict=True)],
    )


def _ends(ends: tuple[float, ...] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"


def main() -> None:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the examples' own")
    parser.add_argument("--examples", choices=sorted(TRIALS), nargs="+", default=sorted(TRIALS))
    parser.add_argument("--steps", type=int, help="of every run (default: the trial's)")
    parser.add_argument(
        "--output", type=Path, help=f"where runs are kept (default {KEPT}; --smallest: nowhere)"
    )
    options = parse(parser, examples=["10"], seeds=[0], steps=1)
    runs = []
    with kept_in(options.output, options.smallest) as folder:
        for number in options.examples:
            for seed in options.seeds or TRIALS[number].seeds:
                note(f"{example_of(number).stem}, seed {seed} (load {os.getloadavg()[0]:.1f})")
                runs.append(learn(number, seed, folder, options.steps))
    report(runs, options.smallest)


@contextmanager
def kept_in(output: Path | None, smallest: bool) -> Iterator[Path]:
    """The folder of all runs: a temporary one in the smallest size, whose runs nobody resumes."""
    if output is None and smallest:
        with tempfile.TemporaryDirectory(prefix="bench-learning-") as folder:
            yield Path(folder)
        return
    folder = (output or KEPT).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


if __name__ == "__main__":
    main()
