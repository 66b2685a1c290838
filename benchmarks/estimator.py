"""bench-estimator: seconds that the time model says, beside seconds that calls take.

Measures a profile of a tiny Llama and of one of 100 M parameters on this CPU, as one rank and as
two, as `rlhf profile` does. Then runs calls of training, inference and generation with the engines
that roles have, for plans that differ in lengths, sizes of batches and micro-batches,
recomputation, updates and ranks. Prints what was predicted, what was measured (the least of the
rounds), and Spearman's rank correlation of the plans' times. Targets: each call's ratio within 30 %
in the median over plans and in each of them, correlation of at least 0.9.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from command_line import make_parser, parse
from estimator_plans import MODELS, SMALLEST, BenchModel, predicted
from estimator_ranks import Work, measured, write_model
from outcome import judgement, note, print_json, print_table

from rlhf_api.spec.resources import Device
from rlhf_planner.problem.profile import Profile
from rlhf_runtime.profiling.ranks import measure
from rlhf_runtime.workers.process import usable_cores

WITHIN = 0.3
CORRELATION = 0.9
RANKS = [1, 2]


def ranks_of(values: Sequence[float]) -> list[float]:
    """Of each value its place in order, the mean one for equal values."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    return statistics.correlation(ranks_of(one), ranks_of(other))


def profiles(
    models: Sequence[BenchModel],
    numbers: Sequence[int],
    folder: Path,
    threads: int | None,
    cpu_seconds: bool,
) -> dict[int, Profile]:
    """What is measured of all models, by ranks."""
    return {
        ranks: measure(
            [each.subject(folder / each.name, generates=ranks == 1) for each in models],
            Device.CPU,
            ranks,
            note,
            threads=threads,
            cpu_seconds=cpu_seconds,
        )
        for ranks in numbers
    }


def compared(
    model: BenchModel,
    by_ranks: dict[int, Profile],
    folder: Path,
    threads: int | None,
    cpu_seconds: bool,
) -> list[dict[str, object]]:
    """A row for each call of each plan."""
    rows: list[dict[str, object]] = []
    for ranks in by_ranks:
        jobs = tuple(job for job in model.jobs if job.ranks == ranks)
        share = threads or max(1, usable_cores() // ranks)
        work = Work(model, folder / model.name, jobs, ranks, share, cpu_seconds)
        found = measured(work, folder / f"{model.name}-{ranks}")
        for job, calls in zip(jobs, found, strict=True):
            seconds = predicted(model, job, by_ranks[ranks])
            sheet = predicted(model, job, None)
            for call, taken in calls.items():
                rows.append(
                    {
                        "model": model.name,
                        "plan": job.name,
                        "call": call,
                        "predicted ms": 1000 * seconds[call],
                        "measured ms": 1000 * min(taken),
                        "ratio": seconds[call] / min(taken),
                        "of a preset": sheet[call] / min(taken),
                    }
                )
    return rows


def conclude(model: str, rows: Sequence[dict[str, object]], smallest: bool) -> bool:
    """Print whether a model's targets are reached."""
    ratios = [float(str(row["ratio"])) for row in rows]
    near = sum(1 - WITHIN <= ratio <= 1 + WITHIN for ratio in ratios)
    totals: dict[str, list[float]] = {}
    for row in rows:
        if row["call"] == "generate":
            continue
        sums = totals.setdefault(str(row["plan"]), [0.0, 0.0])
        sums[0] += float(str(row["predicted ms"]))
        sums[1] += float(str(row["measured ms"]))
    correlation = spearman(*zip(*totals.values(), strict=True))
    reached = near == len(ratios) and correlation >= CORRELATION
    print(
        f"{model}: {near} of {len(ratios)} calls within {WITHIN:.0%} (ratios {min(ratios):.2f} to "
        f"{max(ratios):.2f}, median {statistics.median(ratios):.2f}); rank correlation of "
        f"{len(totals)} plans {correlation:.3f}, target at least {CORRELATION}: "
        f"{judgement(reached, smallest=smallest)}",
        flush=True,
    )
    return reached


def main() -> None:
    """Read the command line."""
    parser = make_parser(__doc__)
    names = [each.name for each in (*MODELS, SMALLEST)]
    parser.add_argument("--model", choices=names, help="only this one")
    parser.add_argument(
        "--ranks", type=int, nargs="+", choices=RANKS, default=RANKS, help="of plans (default 1 2)"
    )
    parser.add_argument("--keep", type=Path, help="a folder for profiles; read if they are there")
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="count seconds in which processes computed, with one thread each: for a machine that "
        "does something else, too",
    )
    options = parse(parser, model=SMALLEST.name, ranks=[1])
    models = [
        each
        for each in (*MODELS, SMALLEST)
        if options.model == each.name or (options.model is None and each is not SMALLEST)
    ]
    threads = 1 if options.cpu_seconds else None
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-estimator-") as scratch:
        folder = Path(scratch)
        for model in models:
            write_model(model, folder / model.name)
        by_ranks = kept_profiles(
            models, options.ranks, folder, threads, options.cpu_seconds, options.keep
        )
        for model in models:
            rows += compared(model, by_ranks, folder, threads, options.cpu_seconds)
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    reached = [
        conclude(model.name, [row for row in rows if row["model"] == model.name], options.smallest)
        for model in models
    ]
    print_json(
        "estimator",
        smallest=options.smallest,
        reached=None if options.smallest else all(reached),
        cpu_seconds=options.cpu_seconds,
        rows=rows,
    )


def kept_profiles(
    models: Sequence[BenchModel],
    numbers: Sequence[int],
    folder: Path,
    threads: int | None,
    cpu_seconds: bool,
    kept: Path | None,
) -> dict[int, Profile]:
    """The profiles, measured now, or those that an earlier time has left."""
    files = {} if kept is None else {ranks: kept / f"{ranks}.profile.json" for ranks in numbers}
    if files and all(file.is_file() for file in files.values()):
        return {r: Profile.model_validate_json(file.read_text()) for r, file in files.items()}
    found = profiles(models, numbers, folder, threads, cpu_seconds)
    for ranks, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found[ranks].to_json())
    return found


if __name__ == "__main__":
    main()
