"""Runs of one job under TRL's GRPOTrainer and under ours, in turns.

TRL has an environment of its own, .venv-trl, which is made with uv.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memory import Finished, run_and_weigh
from outcome import note, print_table, target_result

from rlhf_api.spec.checkpoint import EVALUATION_REWARD
from rlhf_runtime.models.tiny_llama import write_tiny_llama
from runs import median_of, quiet, rlhf_run, step_seconds

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRL_ENVIRONMENT = ROOT / ".venv-trl"
TRL_PACKAGES = (
    "trl==1.16.0",
    "torch==2.13.0",
    # Both sides score with our verifier of mathematics.
    f"math-verify[antlr4_13_2]=={version('math-verify')}",
)
WARMUP_STEPS = 10
"""Steps in which the learning rate rises."""
# The first steps allocate memory.
SKIPPED_STEPS = 3
"""Steps at the start of a run that do not count."""


@dataclass(frozen=True)
class Scenario:
    """One job for both systems."""

    name: str
    task: str
    """Prompts and rewards: a name of `trl_tasks.TASKS`."""
    model: Path | None
    """Folder of the initial model. None: the builtin one, warm or at random."""
    prompts: int
    max_new_tokens: int
    learning_rate: float
    entrypoint: str
    """Our verifier, which scores as the task does."""
    steps: int
    target: float
    """Limit of our step time, as a share of TRL's."""
    devices: tuple[int, ...]
    quick_steps: int = 0
    """Steps with --quick, where there is that option."""
    warm: bool = False
    """True if the builtin model has a warm start."""
    max_prompt_tokens: int = 8
    micro_batch_tokens: int | None = None
    """Of our training; None: our default."""
    checkpoint_every_steps: int = 0
    """0: only after the last step."""
    data: Mapping[str, Any] = field(default_factory=lambda: {"train": {"builtin": "SortDigits"}})
    """The data of our manifest."""

    @property
    def smallest(self) -> Scenario:
        """The same job with two prompts and one step, from an untrained model, on one rank."""
        return replace(self, prompts=2, max_new_tokens=8, steps=1, warm=False, devices=(1,))


@dataclass
class Measured:
    """All rounds of one system in one scenario."""

    seconds: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Held-out, after the last step."""
    peak_mebibytes: list[float] = field(default_factory=list)
    process_mebibytes: list[float] = field(default_factory=list)
    """Peaks of the largest process."""

    def add(self, seconds: Sequence[float], score: float | None, finished: Finished) -> None:
        """Add step times, final score and memory of a run."""
        self.seconds.extend(seconds)
        self.medians.append(median_of(seconds))
        self.scores.extend([] if score is None else [score])
        self.peak_mebibytes.append(finished.peak_mebibytes)
        self.process_mebibytes.append(finished.largest_process_mebibytes)


def make_trl_environment() -> Path:
    """Create TRL's environment, or bring it up to date; returns its interpreter."""
    python = TRL_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        # Apart from ours: its packages need other versions.
        note(f"making {TRL_ENVIRONMENT.name} with {' '.join(TRL_PACKAGES)}")
        quiet(["uv", "venv", "--python", "3.11", str(TRL_ENVIRONMENT)])
    quiet(["uv", "pip", "install", "--python", str(python), *TRL_PACKAGES])
    return python


def make_model(scenario: Scenario, folder: Path) -> Path:
    """Return the initial model of both systems; makes the builtin one."""
    if scenario.model is not None:
        return scenario.model
    model = folder / f"model-{scenario.name}"
    if scenario.warm:
        quiet([sys.executable, str(HERE / "warm_model.py"), str(model)])
    else:
        write_tiny_llama(model, 0)
    return model


def run_trl(
    python: Path, scenario: Scenario, model: Path, steps: int, folder: Path, measured: Measured
) -> None:
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
        f"--task={scenario.task}",
    ]
    finished = run_and_weigh(command, folder / "trl.log", environment)
    # Libraries print to stdout, too; the answer comes last.
    answer = json.loads(finished.output.splitlines()[-1])
    measured.add(answer["seconds"][num_skipped(steps) :], answer["score"], finished)


def run_ours(
    scenario: Scenario, model: Path, steps: int, devices: int, folder: Path, measured: Measured
) -> None:
    """Measure one run of ours."""
    manifest = folder / f"{scenario.name}.yaml"
    manifest.write_text(manifest_text(scenario, model, steps))
    records, finished = rlhf_run(manifest, folder / "run", [f"--devices={devices}"])
    (score,) = [
        record.metrics[EVALUATION_REWARD] for record in records.evaluations if record.step == steps
    ]
    measured.add(step_seconds(records, num_skipped(steps)), score, finished)


def num_skipped(steps: int) -> int:
    """Number of steps at the start that do not count."""
    return min(SKIPPED_STEPS, steps - 1)


def manifest_text(scenario: Scenario, model: Path, steps: int) -> str:
    """Manifest of our job."""
    training = {
        "learningRate": scenario.learning_rate,
        "warmupSteps": WARMUP_STEPS,
        "microBatchTokens": scenario.micro_batch_tokens,
    }
    spec = {
        "algorithm": {"type": "GRPO"},
        "models": {"actor": {"source": {"path": str(model)}, "training": training}},
        "data": scenario.data,
        "code": {"local": str(HERE)},
        "checkpoint": {"everySteps": scenario.checkpoint_every_steps},
        "rewards": [{"function": {"entrypoint": scenario.entrypoint}}],
        "rollout": {
            "samplesPerPrompt": 8,
            "maxPromptTokens": scenario.max_prompt_tokens,
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
    systems: dict[str, Callable[[Path, Measured], None]] = {}
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
            run_in(folder, measured[system])
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
    header = [f"{scenario.name}, {steps} steps", "step s", "of TRL's", "held-out score", "peak MiB"]
    rows = [
        [
            system,
            f"{median_of(run.seconds):.3f}",
            f"{ratios[system]:.2f}" if system in ratios else None,
            f"{median_of(run.scores):.3f}" if run.scores else None,
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
                "scores": run.scores,
                "peak_mebibytes": max(run.peak_mebibytes),
            }
            for system, run in measured.items()
        },
    }
