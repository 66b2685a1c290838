"""bench-placement: a step of PPO on the same ranks, colocated and split.

Runs example 02 with a reference on two ranks under `placement.type: Colocated` and `Split`, one
after the other and again. Prints for both the step time, the share of it in which ranks were idle
between their first and last call, and a timeline of the step with the median time: one line per
process, one letter per call.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from command_line import make_parser, parse
from outcome import note, print_json, print_table

from rlhf_runtime.telemetry.records import Span, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from runs import median_of, rlhf_run

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "02-sort-ppo.yaml"
PLACEMENTS = ("Colocated", "Split")
WIDTH = 72
"""Characters of a timeline."""
LETTERS = {
    "generate": "g",
    "reshard": "t",
    "score": "s",
    "log_probs": "l",
    "values": "v",
    "compute": "c",
    "train": "T",
}
"""Letters of calls in a timeline; other calls are `x`."""
# The first steps allocate memory.
SKIPPED = 3
"""Steps at the start of a run that do not count."""


def steps_under(placement: str, devices: int, steps: int, folder: Path) -> list[StepRecord]:
    """Run the example under a placement; returns its steps without the first ones."""
    settings = {
        "placement": f"{{type: {placement}}}",
        "schedule.warmStart": "null",
        "schedule.evaluateEverySteps": "0",
        # A KL penalty adds a reference model.
        "algorithm.ppo.klCoefficient": "0.01",
    }
    options = [f"--devices={devices}", f"--steps={steps}"]
    for name, value in settings.items():
        options += ["--set", f"spec.{name}={value}"]
    records, _ = rlhf_run(EXAMPLE, folder, options)
    spans = RunFolder(folder).read_spans([step.step for step in records.steps])
    return [
        replace(step, spans=spans[step.step]) for step in records.steps[min(SKIPPED, steps - 1) :]
    ]


def ranks_of(steps: Sequence[StepRecord]) -> list[str]:
    """Processes that compute on a device, in order."""
    return sorted({s.process for step in steps for s in step.spans if s.process.startswith("rank")})


def idle_share(step: StepRecord, process: str) -> float:
    """Share of a step in which a process runs no call."""
    begin, end = bounds(step.spans)
    busy = covered([(s.start, s.end) for s in step.spans if s.process == process])
    return 1 - busy / (end - begin)


def bounds(spans: Sequence[Span]) -> tuple[float, float]:
    """Unix seconds of the ranks' first start and last end."""
    # Only ranks: the data host prepares prompts long before.
    of_ranks = [span for span in spans if span.process.startswith("rank")]
    return min(span.start for span in of_ranks), max(span.end for span in of_ranks)


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Seconds in the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def timeline(step: StepRecord) -> Iterator[str]:
    """Yield a line per process: letters of its calls over time, dots where it waits."""
    begin, end = bounds(step.spans)
    for process in sorted({span.process for span in step.spans}):
        line = ["."] * WIDTH
        for span in (s for s in step.spans if s.process == process and s.start >= begin):
            first, last = (
                # A little less than WIDTH, so that the end is the last column.
                int((moment - begin) / (end - begin) * (WIDTH - 1e-6))
                for moment in (span.start, span.end)
            )
            for column in range(first, last + 1):
                line[column] = LETTERS.get(span.call, "x")
        yield f"{process:<8} {''.join(line)}"


def report(steps_by_placement: dict[str, list[StepRecord]], smallest: bool) -> None:
    """Print table, timelines and JSON."""
    runs = steps_by_placement.items()
    seconds = {name: median_of([s.seconds for s in steps]) for name, steps in runs}
    idle = {
        name: {p: statistics.mean(idle_share(s, p) for s in steps) for p in ranks_of(steps)}
        for name, steps in runs
    }
    ratio = seconds["Split"] / seconds["Colocated"]
    rows = [
        [name, 1000 * seconds[name], *(f"{share:.2f}" for share in idle[name].values())]
        for name, _ in runs
    ]
    header = [f"idle {rank}" for rank in next(iter(idle.values()))]
    print_table(["placement", "ms a step", *header], rows)
    print(f"split: {ratio:.2f}x of the colocated step")
    for name, steps in runs:
        middle = sorted(steps, key=lambda step: step.seconds)[len(steps) // 2]
        print(f"\n{name}, a step of {1000 * middle.seconds:.0f} ms")
        print("\n".join(timeline(middle)))
    print("\n" + ", ".join(f"{letter} {call}" for call, letter in LETTERS.items()))
    print_json("placement", smallest=smallest, ratio=ratio, seconds=seconds, idle=idle)


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--steps", type=int, default=15, help="steps per run (default 15)")
    parser.add_argument("--rounds", type=int, default=2, help="runs per placement (default 2)")
    options = parse(parser, steps=2, rounds=1)
    measured: dict[str, list[StepRecord]] = {name: [] for name in PLACEMENTS}
    with tempfile.TemporaryDirectory(prefix="bench-placement-") as scratch:
        for number in range(options.rounds):
            for name in PLACEMENTS:
                note(f"{name}, run {number + 1} of {options.rounds}")
                folder = Path(scratch) / f"{name}-{number}"
                measured[name] += steps_under(name, options.devices, options.steps, folder)
    report(measured, options.smallest)


if __name__ == "__main__":
    main()
