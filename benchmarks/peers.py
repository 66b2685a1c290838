"""bench-peers: the same jobs under TRL's GRPOTrainer and under ours, side by side.

sort:  example 01 from a warm-started model: 64 prompts x 8, answers of 7 tokens. Same model,
       prompts, learning rate, steps. Ours at world size 1 and 2. Target: at most 0.9 of TRL's step,
       as accurate.
long:  the builtin model at random, whose responses end with probability 1/64 per token: 16 prompts
       x 8, up to 256 tokens. Target: at most half of TRL's step.

TRL has an environment of its own, .venv-trl, which this program creates with uv. Runs alternate
over several rounds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from command_line import make_parser, parse
from memory import run_and_weigh
from outcome import note, print_json, print_table, target_result

from rlhf_runtime.models.tiny_llama import write_tiny_llama
from runs import exact_match_at, median_of, quiet, rlhf_run, step_seconds

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRL_ENVIRONMENT = ROOT / ".venv-trl"
TRL_PACKAGES = ("trl==1.16.0", "torch==2.13.0")
# The first steps allocate memory.
SKIPPED_STEPS = 3
"""Steps at the start of a run that do not count."""


@dataclass(frozen=True)
class Scenario:
    """One job for both systems."""

    name: str
    prompts: int
    max_new_tokens: int
    learning_rate: float
    reward: str
    entrypoint: str
    steps: int
    quick_steps: int
    warm: bool
    target: float
    """Limit of our step time, as a share of TRL's."""
    devices: tuple[int, ...]

    @property
    def smallest(self) -> Scenario:
        """The same job with two prompts and one step, from an untrained model, on one rank."""
        return replace(self, prompts=2, max_new_tokens=8, steps=1, warm=False, devices=(1,))


SCENARIOS = {
    "sort": Scenario(
        name="sort",
        prompts=64,
        max_new_tokens=8,
        learning_rate=2e-4,
        reward="exact_match",
        entrypoint="rlhf_runtime.rewards.exact_match:score",
        steps=150,
        quick_steps=20,
        warm=True,
        target=0.9,
        devices=(1, 2),
    ),
    "long": Scenario(
        name="long",
        prompts=16,
        max_new_tokens=256,
        learning_rate=1e-6,
        reward="digit_share",
        entrypoint="digit_reward:score",
        steps=20,
        quick_steps=6,
        warm=False,
        target=0.5,
        devices=(1,),
    ),
}


@dataclass
class Measured:
    """All rounds of one system in one scenario."""

    seconds: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    exact_match: list[float] = field(default_factory=list)
    peak_mebibytes: list[float] = field(default_factory=list)

    def add(self, seconds: Sequence[float], accuracy: float | None, mebibytes: float) -> None:
        """Add step times, final accuracy and memory of a run."""
        self.seconds.extend(seconds)
        self.medians.append(median_of(seconds))
        self.exact_match.extend([] if accuracy is None else [accuracy])
        self.peak_mebibytes.append(mebibytes)


def make_trl_environment() -> Path:
    """Create TRL's environment if it is missing; returns its interpreter."""
    python = TRL_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        # Apart from ours: its packages need other versions.
        note(f"making {TRL_ENVIRONMENT.name} with {' '.join(TRL_PACKAGES)}")
        quiet(["uv", "venv", "--python", "3.11", str(TRL_ENVIRONMENT)])
        quiet(["uv", "pip", "install", "--python", str(python), *TRL_PACKAGES])
    return python


def make_model(scenario: Scenario, folder: Path) -> Path:
    """Make the initial model of both systems."""
    model = folder / f"model-{scenario.name}"
    if scenario.warm:
        quiet([sys.executable, str(HERE / "warm_model.py"), str(model)])
    else:
        write_tiny_llama(model, 0)
    return model


def run_trl(python: Path, scenario: Scenario, model: Path, steps: int, folder: Path) -> Measured:
    """Measure one run of TRL."""
    threads = str(len(os.sched_getaffinity(0)))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "crds"), str(ROOT / "runtime")]),
        "OMP_NUM_THREADS": threads,
        # As in our ranks. On a busy machine spinning threads cost TRL a factor 4.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [
        str(python),
        str(HERE / "trl_loop.py"),
        str(model),
        f"--scratch={folder / 'trl'}",
        f"--steps={steps}",
        f"--prompts={scenario.prompts}",
        f"--max-new-tokens={scenario.max_new_tokens}",
        f"--learning-rate={scenario.learning_rate}",
        f"--reward={scenario.reward}",
    ]
    finished = run_and_weigh(command, folder / "trl.log", environment)
    # Libraries print to stdout, too; the answer comes last.
    answer = json.loads(finished.output.splitlines()[-1])
    measured = Measured()
    seconds = answer["seconds"][num_skipped(steps) :]
    measured.add(seconds, answer["exact_match"], finished.peak_mebibytes)
    return measured


def run_ours(scenario: Scenario, model: Path, steps: int, devices: int, folder: Path) -> Measured:
    """Measure one run of ours."""
    manifest = folder / f"{scenario.name}.yaml"
    manifest.write_text(manifest_text(scenario, model, steps))
    records, finished = rlhf_run(manifest, folder / "run", [f"--devices={devices}"])
    measured = Measured()
    accuracy = exact_match_at(records).get(steps)
    measured.add(step_seconds(records, num_skipped(steps)), accuracy, finished.peak_mebibytes)
    return measured


def num_skipped(steps: int) -> int:
    """Number of steps at the start that do not count."""
    return min(SKIPPED_STEPS, steps - 1)


def manifest_text(scenario: Scenario, model: Path, steps: int) -> str:
    """Manifest of our job."""
    spec = {
        "algorithm": {"type": "GRPO"},
        "models": {
            "actor": {
                "source": {"path": str(model)},
                "training": {"learningRate": scenario.learning_rate, "warmupSteps": 10},
            }
        },
        "data": {"train": {"builtin": "SortDigits"}},
        "code": {"local": str(HERE)},
        "rewards": [{"function": {"entrypoint": scenario.entrypoint}}],
        "rollout": {
            "samplesPerPrompt": 8,
            "maxPromptTokens": 8,
            "maxResponseTokens": scenario.max_new_tokens,
            # All at once, as TRL generates.
            "maxConcurrentSequences": scenario.prompts * 8,
        },
        "schedule": {
            "steps": steps,
            "promptsPerStep": scenario.prompts,
            "evaluateEverySteps": 0,
        },
    }
    job = {
        "apiVersion": "rlhf-operator.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": f"peers-{scenario.name}"},
        "spec": spec,
    }
    return json.dumps(job, indent=1)  # JSON is YAML


def measure(
    scenario: Scenario, python: Path | None, steps: int, rounds: int, scratch: Path
) -> dict[str, Measured]:
    """Run all systems in turns, `rounds` times.

    Args:
        scenario: the job.
        python: TRL's interpreter. None: without TRL.
        steps: length of a run.
        rounds: runs per system.
        scratch: folder for models, runs and logs.
    """
    model = make_model(scenario, scratch)
    systems: dict[str, Callable[[Path], Measured]] = {}
    if python is not None:
        systems["TRL"] = partial(run_trl, python, scenario, model, steps)
    for devices in scenario.devices:
        systems[f"ours, {devices} rank(s)"] = partial(run_ours, scenario, model, steps, devices)
    measured = {system: Measured() for system in systems}
    # In turns: a slow hour slows all systems alike.
    for number in range(rounds):
        for position, (system, run_in) in enumerate(systems.items()):
            note(f"{scenario.name}, round {number + 1}: {system} (load {os.getloadavg()[0]:.1f})")
            folder = scratch / f"{scenario.name}-{number}-{position}"
            folder.mkdir()
            run = run_in(folder)
            measured[system].seconds += run.seconds
            measured[system].medians += run.medians
            measured[system].exact_match += run.exact_match
            measured[system].peak_mebibytes += run.peak_mebibytes
    return measured


def ratios_of(measured: dict[str, Measured]) -> dict[str, float]:
    """Step times by system, as shares of TRL's; empty without TRL."""
    if "TRL" not in measured:
        return {}
    trl = measured["TRL"].medians
    return {
        system: median_of([a / b for a, b in zip(run.medians, trl, strict=True)])
        for system, run in measured.items()
    }


def report(
    scenario: Scenario, steps: int, measured: dict[str, Measured], smallest: bool
) -> dict[str, object]:
    """Print table and verdict of one scenario; returns its part of the JSON line."""
    ratios = ratios_of(measured)
    header = [f"{scenario.name}, {steps} steps", "step s", "of TRL's", "exact match", "peak MiB"]
    rows = [
        [
            system,
            f"{median_of(run.seconds):.3f}",
            f"{ratios[system]:.2f}" if system in ratios else None,
            f"{median_of(run.exact_match):.3f}" if run.exact_match else None,
            max(run.peak_mebibytes),
        ]
        for system, run in measured.items()
    ]
    print_table(header, rows)
    best = min((ratio for system, ratio in ratios.items() if system != "TRL"), default=None)
    result = "not checked"
    if best is not None:  # None without TRL
        result = target_result(best <= scenario.target, smallest=smallest)
    print(f"{scenario.name}: target at most {scenario.target:g} of TRL's step time: {result}\n")
    return {
        "ratio": best,
        "target": scenario.target,
        "steps": steps,
        "systems": {
            system: {
                "step_seconds": median_of(run.seconds),
                "ratio": ratios.get(system),
                "exact_match": run.exact_match,
                "peak_mebibytes": max(run.peak_mebibytes),
            }
            for system, run in measured.items()
        },
    }


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    names = sorted(SCENARIOS, reverse=True)
    parser.add_argument("--scenarios", choices=names, nargs="+", default=names)
    parser.add_argument("--rounds", type=int, default=2, help="runs per system (default 2)")
    parser.add_argument("--quick", action="store_true", help="few steps, one round")
    parser.add_argument("--output", type=Path, help="keep runs and logs here (default: nowhere)")
    parser.add_argument(
        "--without-trl", action="store_true", help="only ours, without ratios; with --smallest"
    )
    options = parse(parser, rounds=1, scenarios=["long"])
    if options.without_trl and not options.smallest:
        parser.error("--without-trl: got it without --smallest: peers are what is measured")
    if options.without_trl:
        print("TRL is left out: --without-trl")
    python = None if options.without_trl else make_trl_environment()
    summary = {}
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as temporary:
        scratch = (options.output or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        for name in options.scenarios:
            scenario = SCENARIOS[name].smallest if options.smallest else SCENARIOS[name]
            steps = scenario.quick_steps if options.quick else scenario.steps
            rounds = 1 if options.quick else options.rounds
            try:
                measured = measure(scenario, python, steps, rounds, scratch)
            except RuntimeError as error:
                sys.exit(f"bench-peers: {error}")
            summary[name] = report(scenario, steps, measured, options.smallest)
    print_json(
        "peers",
        smallest=options.smallest,
        without_trl=options.without_trl,
        scenarios=summary,
    )


if __name__ == "__main__":
    main()
