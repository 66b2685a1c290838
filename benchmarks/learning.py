"""bench-learning: does every algorithm's example learn?

Every run is `rlhf run` as a user types it. Runs of more than a minute and a half have fewer steps
than the example. Examples with a warm start begin with a model that had it already, one per seed.
Models and runs are kept: a repeated benchmark resumes them. A run passes if held-out exact match
(of a reward model: the share of pairs in the right order) rises by at least the example's gain; a
cost must also end below its budget.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
RUNS = ROOT / "rlhf-runs" / "bench-learning"
SEVERAL_SEEDS = (0, 1, 2)
MEAN_REWARD = "evaluation/reward_mean"


@dataclass(frozen=True)
class Trial:
    """An example and its target."""

    steps: int
    gain: float
    """Required increase of held-out accuracy."""
    seeds: tuple[int, ...] = (0,)
    starts_from: str = ""
    """Example whose model is the initial policy."""
    scored_by: str = ""
    """Example whose model is the first reward."""
    devices: int = 1
    """Ranks of the run."""
    uses_real_model: bool = False
    """True if model and rows are those of `make demo-real`."""


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
    "17": Trial(steps=15, gain=0.3, seeds=SEVERAL_SEEDS, uses_real_model=True),
}
"""Trials by number of the example."""


@dataclass(frozen=True)
class TrialResult:
    """Outcome of one run."""

    example: str
    algorithm: str
    seed: int
    first: float
    """Held-out accuracy before the first step."""
    last: float
    best: float
    reward: tuple[float, float] | None
    """Means over the first and over the last ten steps."""
    cost: tuple[float, float, float] | None
    """Means of the cost, and its budget."""
    kl: tuple[float, float] | None
    """KL to the reference, as the reward."""
    seconds: float
    """Time of training steps, without evaluations."""

    @property
    def passed(self) -> bool:
        """True if accuracy rose enough and the cost is within its budget."""
        is_safe = self.cost is None or self.cost[1] <= self.cost[2]
        return is_safe and self.last >= self.first + TRIALS[self.example].gain


def example_of(number: str) -> Path:
    """Manifest of an example."""
    (file,) = EXAMPLES.glob(f"{number}-*.yaml")
    return file


def learn(
    number: str, seed: int, folder: Path, steps: int | None, changes: Sequence[str] = ()
) -> TrialResult:
    """Run an example, or resume its run.

    Args:
        number: the example's.
        seed: the job's.
        folder: contains all runs.
        steps: length of every run. None: as the trial says.
        changes: fields of the example to set; earlier runs that it starts from are as ever.
    """
    file, trial = example_of(number), TRIALS[number]
    spec = yaml.safe_load(file.read_text())["spec"]
    options = [f"--seed={seed}", f"--steps={steps or trial.steps}", f"--devices={trial.devices}"]
    (role, *_) = spec["models"]
    if trial.uses_real_model:
        make_real_model()
    # Models of other examples are trained first, in runs of their own.
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
    options += [f"--set={change}" for change in changes]
    records, _ = rlhf_run(file, run_folder(number, seed, folder), options)
    accuracy = list(accuracies(records).values())
    return TrialResult(
        number,
        spec["algorithm"]["type"],
        seed,
        accuracy[0],
        accuracy[-1],
        max(accuracy),
        ends_of(records, "reward/mean"),
        cost_of(records, spec["algorithm"]),
        ends_of(records, f"{role}/kl"),
        training_seconds(records),
    )


def _source(role: str, model: Path) -> list[str]:
    return ["--set", f"spec.models.{role}.source={{path: {model.resolve()}}}"]


def run_folder(number: str, seed: int, folder: Path) -> Path:
    """Folder of a run."""
    return folder / f"{example_of(number).stem}-seed-{seed}"


def warm_model(seed: int, folder: Path) -> Path:
    """Make the warm-started model of a seed, once."""
    model = folder / f"warm-model-seed-{seed}"
    if not model.exists():
        # Renamed when complete: an interrupted benchmark leaves no half of a model.
        partial = model.with_name(model.name + ".new")
        program = Path(__file__).with_name("warm_model.py")
        quiet([sys.executable, str(program), str(partial), f"--seed={seed}"])
        partial.rename(model)
    return model


def make_real_model() -> None:
    """Make model and rows of `make demo-real`, once."""
    program = ROOT / "tools" / "real_model" / "make_model.py"
    uv = Path(sys.executable).with_name("uv")
    quiet([sys.executable, str(program), str(ROOT / "rlhf-runs" / "smollm2"), f"--uv={uv}"])


def accuracies(records: RunRecords) -> dict[int, float]:
    """Held-out accuracy by step: exact match, a reward model's on pairs, or the mean reward."""
    # Every step brings fresh pairs, so the accuracy in training is a held-out one.
    pair_accuracy = {
        step.step: step.metrics[name]
        for step in records.steps
        for name in step.metrics
        if name.endswith("/accuracy")
    }
    # Rewards of 0 and 1, from another verifier.
    mean_reward = {
        record.step: record.metrics[MEAN_REWARD]
        for record in records.evaluations
        if MEAN_REWARD in record.metrics
    }
    return exact_match_at(records) or pair_accuracy or mean_reward


def ends_of(records: RunRecords, metric: str) -> tuple[float, float] | None:
    """Means of a metric over the first and over the last ten steps. None: no step has it."""
    values = [step.metrics[metric] for step in records.steps if metric in step.metrics]
    if not values:
        return None
    first, last = values[:10], values[-10:]
    return sum(first) / len(first), sum(last) / len(last)


def cost_of(
    records: RunRecords, algorithm: dict[str, dict[str, float]]
) -> tuple[float, float, float] | None:
    """Means of the cost, and its budget. None: the run has no cost."""
    ends = ends_of(records, "cost/mean")
    if ends is None:
        return None
    settings = algorithm[AlgorithmType.SAFE_RLHF.settings_field]
    return *ends, settings["costBudget"]


def report(runs: list[TrialResult], smallest: bool) -> None:
    """Print table, verdict and JSON."""
    # A run of the smallest size is too short to learn anything.
    passed = [None if smallest else run.passed for run in runs]
    header = [
        "example",
        "seed",
        "before",
        "after",
        "best",
        "reward",
        "cost",
        "KL",
        "RL s",
        "passed",
    ]
    rows = [
        [
            f"{run.example} {run.algorithm}",
            run.seed,
            f"{run.first:.3f}",
            f"{run.last:.3f}",
            f"{run.best:.3f}",
            _ends(run.reward),
            "-" if run.cost is None else f"{_ends(run.cost[:2])} of {run.cost[2]:g}",
            _ends(run.kl),
            run.seconds,
            {True: "yes", False: "NO", None: "not checked"}[has_passed],
        ]
        for run, has_passed in zip(runs, passed, strict=True)
    ]
    print_table(header, rows)
    if not smallest:
        print(f"{passed.count(True)} of {len(runs)} runs reached their target")
    print_json(
        "learning",
        smallest=smallest,
        runs=[vars(run) | {"passed": p} for run, p in zip(runs, passed, strict=True)],
    )


def _ends(ends: tuple[float, ...] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"


def main() -> None:
    """Read the command line, run the trials and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the examples' own")
    parser.add_argument("--examples", choices=sorted(TRIALS), nargs="+", default=sorted(TRIALS))
    parser.add_argument("--steps", type=int, help="length of every run (default: the trial's)")
    parser.add_argument(
        "--output", type=Path, help=f"folder of all runs (default {RUNS}; --smallest: none)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    options = parse(parser, examples=["10"], seeds=[0], steps=1)
    # Runs are resumed by their folder, which does not tell the changes.
    if options.set and not options.output:
        parser.error("--set: got no --output: the default folder has the examples' own runs")
    runs = []
    with runs_folder(options.output, options.smallest) as folder:
        for number in options.examples:
            for seed in options.seeds or TRIALS[number].seeds:
                note(f"{example_of(number).stem}, seed {seed} (load {os.getloadavg()[0]:.1f})")
                runs.append(learn(number, seed, folder, options.steps, options.set))
    report(runs, options.smallest)


@contextmanager
def runs_folder(output: Path | None, smallest: bool) -> Iterator[Path]:
    """Folder of all runs."""
    if output is None and smallest:
        # Temporary: a run of the smallest size must not be resumed by a real one.
        with tempfile.TemporaryDirectory(prefix="bench-learning-") as folder:
            yield Path(folder)
        return
    folder = (output or RUNS).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


if __name__ == "__main__":
    main()
