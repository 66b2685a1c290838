"""bench-recovery: from `kill -9` of a rank to the next training step, by phase.

Measures with a standby that has imported the workers' libraries (`failurePolicy.standby: true`) and
without. The baseline is the start of the same command up to its first step: the time of a restart
that keeps nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from command_line import parse
from outcome import note, paired_ratio, phase_medians, print_json, print_table

from rlhf_runtime.telemetry.run_folder import RunFolder
from runs import rlhf_run, start_parser

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "01-sort-grpo.yaml"
KINDS = {"standing by": True, "not": False}
"""Values of `failurePolicy.standby`."""
IN_SEQUENCE = ("noticed", "libraries", "models and engines", "restored and trained")


def recovery(folder: Path, devices: int, step: int, standby: bool) -> dict[str, float]:
    """Kill a rank in `step` of a run with a checkpoint after every step.

    Returns: seconds by phase. `total`: from the kill to the end of the next step. `cold start`:
    from the start of the command to the end of its first step.
    """
    fault = f"kill:rank={devices - 1},phase=train,step={step}"
    # Warm start and evaluations are no part of a recovery. A checkpoint after every step bounds the
    # loss to one step.
    settings = (
        "schedule.warmStart=null",
        "schedule.evaluateEverySteps=0",
        "checkpoint.everySteps=1",
        f"failurePolicy.standby={str(standby).lower()}",
    )
    options = [f"--devices={devices}", f"--steps={step + 2}", "--inject", fault]
    options += [word for setting in settings for word in ("--set", f"spec.{setting}")]
    rlhf_run(EXAMPLE, folder, options)
    # The injected fault writes this file just before it kills the rank.
    (struck,) = (folder / "logs").glob("*.struck")
    killed = struck.stat().st_mtime
    lines = [json.loads(line) for line in RunFolder(folder).metrics.read_text().splitlines()]
    # One line of kind `run` per incarnation.
    first, second = (number for number, line in enumerate(lines) if line["kind"] == "run")
    phases = [line["phases"] for line in lines[second:] if line["kind"] == "startup"][-1]
    restarted = lines[second]["workers_started"]
    ends = step_ends(folder)
    before, after = min(ends), min(end for end in ends if end > killed)
    startup = {name: phases[name] for name in ("libraries", "models and engines")}
    return {
        "noticed": restarted - killed,
        **startup,
        "restored and trained": after - restarted - sum(startup.values()),
        "total": after - killed,
        "cold start": before - lines[first]["started"],
    }


def step_ends(folder: Path) -> list[float]:
    """End of every training step in Unix seconds, by the workers' clocks."""
    lines = RunFolder(folder).timeline.read_text().splitlines()
    return [max(span[-1] for span in json.loads(line)["spans"]) for line in lines]


def report(measured: Mapping[str, Sequence[Mapping[str, float]]], smallest: bool) -> None:
    """Print table, ratios and JSON."""
    columns = {
        kind: {name: value / 1000 for name, value in phase_medians(results).items()}
        for kind, results in measured.items()
    }
    ratios = {
        kind: paired_ratio([r["total"] for r in results], [r["cold start"] for r in results])
        for kind, results in measured.items()
    }
    print_table(
        ["median seconds", *columns],
        [
            [name, *(column[name] for column in columns.values())]
            for name in (*IN_SEQUENCE, "total", "cold start")
        ],
    )
    for kind, column in columns.items():
        print(
            f"{kind}: the next step after {column['total']:.1f} s, {ratios[kind]:.2f}x of a start "
            "of the command"
        )
    print_json("recovery", smallest=smallest, ratio=ratios, seconds=columns)


def main() -> None:
    """Read the command line, measure and report."""
    parser = start_parser(__doc__)
    parser.add_argument("--step", type=int, default=4, help="step of the kill (default 4)")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    options = parse(parser, runs=1, step=2, kinds=["standing by"])
    measured: dict[str, list[dict[str, float]]] = {kind: [] for kind in options.kinds}
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as scratch:
        for number in range(options.runs):
            for kind, results in measured.items():
                note(f"{kind}, run {number + 1} of {options.runs} (load {os.getloadavg()[0]:.1f})")
                folder = Path(scratch) / f"{number}-{kind}"
                results.append(recovery(folder, options.devices, options.step, KINDS[kind]))
    report(measured, options.smallest)


if __name__ == "__main__":
    main()
