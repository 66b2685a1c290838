"""bench-startup: from `rlhf run` to the first generated tokens, by phase.

Measures `rlhf run` alone, and with `rlhf standby`, which has imported the workers' libraries. The
baseline is one process that imports vLLM, builds an engine for the same model and generates one
token. It has no Ray, trainer, data or verifiers: the ratio is for orientation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import parse
from outcome import note, paired_ratio, phase_medians, print_json, print_table

from rlhf_runtime.models.tiny_llama import write_tiny_llama
from runs import ENVIRONMENT, RLHF, rlhf_run, start_parser

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "01-sort-grpo.yaml"
IN_SEQUENCE = ("command", "ray", "libraries", "models and engines", "first generation")
"""Consecutive phases; data and verifiers are loaded while models are."""


def our_start(folder: Path, devices: int) -> dict[str, float]:
    """Run a single step; returns seconds by phase. `total`: to the end of the first generation."""
    begin = time.time()
    options = [f"--devices={devices}", "--steps=1", "--set", "spec.schedule.warmStart=null"]
    records, _ = rlhf_run(EXAMPLE, folder, options)
    assert records.startup is not None
    phases = dict(records.startup.phases)
    (run,) = records.runs
    # The command's own records begin when Python has started and imported it.
    phases["command"] = run.started - begin
    return {**phases, "total": sum(phases[name] for name in IN_SEQUENCE)}


def bare_start(model: Path) -> dict[str, float]:
    """Run the baseline; returns seconds by phase."""
    command = [sys.executable, str(HERE / "bare_engine.py"), str(model)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    phases: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return phases


def main() -> None:
    """Read the command line, measure and report."""
    options = parse(start_parser(__doc__), runs=1)
    ours, with_standby, bare = [], [], []
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as scratch:
        folder = Path(scratch)
        write_tiny_llama(folder / "model", 0)
        for number in range(options.runs):
            note(f"run {number + 1} of {options.runs} (load {os.getloadavg()[0]:.1f})")
            ours.append(our_start(folder / f"run-{number}", options.devices))
            bare.append(bare_start(folder / "model"))
            with standby():
                with_standby.append(our_start(folder / f"standby-{number}", options.devices))
    columns = [
        {name: value / 1000 for name, value in phase_medians(runs).items()}
        for runs in (ours, with_standby, bare)
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    print_table(
        ["median seconds", "rlhf run", "with standby", "bare vLLM"],
        [
            [name, *(column.get(name) for column in columns)]
            # The order of the phases, with the total at the end.
            for name in sorted(names, key="total".__eq__)
        ],
    )
    ratio, standby_ratio = (
        paired_ratio([run["total"] for run in runs], [run["total"] for run in bare])
        for runs in (ours, with_standby)
    )
    left, middle, right = columns
    print(
        f"first tokens after {left['total']:.1f} s, {ratio:.2f}x of bare vLLM; with `rlhf "
        f"standby` after {middle['total']:.1f} s, {standby_ratio:.2f}x"
    )
    print("data and verifiers are loaded while models are")
    print_json(
        "startup",
        smallest=options.smallest,
        ratio=ratio,
        devices=options.devices,
        ours=left,
        standby_ratio=standby_ratio,
        standby=middle,
        baseline=right,
    )


@contextmanager
def standby() -> Iterator[None]:
    """Run `rlhf standby`; enters when it has imported its libraries."""
    command = [RLHF, "standby"]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            # A message about another user's standby may come first.
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "ready after" in line:
                    break
            else:
                raise RuntimeError(f"rlhf standby does not get ready: {''.join(lines)}")
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
