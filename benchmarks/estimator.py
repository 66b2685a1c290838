"""bench-estimator: seconds predicted by the time model, beside measured seconds.

Measures a profile of a tiny Llama and of one of 100 M parameters on this CPU, as one rank and as
two, as `rlhf profile` does. Then runs calls of training, inference and generation with the engines
of roles, for plans that differ in lengths, sizes of batches and micro-batches, recomputation,
updates and ranks. Prints predicted and measured times (the fastest round), and Spearman's rank
correlation of the plans' times. Targets: the ratio of every call within 30 %, correlation of at
least 0.9.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from command_line import make_parser, parse
from estimator_plans import MODELS, SMALLEST, BenchModel, predict
from estimator_ranks import Work, run_work, write_model
from outcome import note, print_json, print_table, target_result

from rlhf_api.spec.resources import Device
from rlhf_planner.problem.profile import Profile
from rlhf_runtime.profiling.ranks import measure
from rlhf_runtime.workers.process import usable_cores

MAX_DEVIATION = 0.3
MIN_CORRELATION = 0.9
RANKS = [1, 2]


def ranks_of(values: Sequence[float]) -> list[float]:
    """Ranks in sorted order; equal values share the mean rank."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    return statistics.correlation(ranks_of(one), ranks_of(other))


def measure_profiles(
    models: Sequence[BenchModel],
    numbers: Sequence[int],
    folder: Path,
    threads: int | None,
    cpu_seconds: bool,
) -> dict[int, Profile]:
    """Profiles of all models, by number of ranks."""
    return {
        ranks: measure(
            # Plans generate on one rank only.
            [model.subject(folder / model.name, generates=ranks == 1) for model in models],
            Device.CPU,
            ranks,
            note,
            threads=threads,
            cpu_seconds=cpu_seconds,
        )
        for ranks in numbers
    }


def compare(
    model: BenchModel,
    by_ranks: dict[int, Profile],
    folder: Path,
    threads: int | None,
    cpu_seconds: bool,
) -> list[dict[str, object]]:
    """Rows by plan and call: predicted and measured milliseconds."""
    rows: list[dict[str, object]] = []
    for ranks in by_ranks:
        jobs = tuple(job for job in model.jobs if job.ranks == ranks)
        share = threads or max(1, usable_cores() // ranks)
        work = Work(model, folder / model.name, jobs, ranks, share, cpu_seconds)
        measured = run_work(work, folder / f"{model.name}-{ranks}")
        for job, calls in zip(jobs, measured, strict=True):
            seconds = predict(model, job, by_ranks[ranks])
            by_preset = predict(model, job, None)
            for call, rounds in calls.items():
                # The fastest round: whatever else the machine does only adds time.
                fastest = min(rounds)
                rows.append(
                    {
                        "model": model.name,
                        "plan": job.name,
                        "call": call,
                        "predicted ms": 1000 * seconds[call],
                        "measured ms": 1000 * fastest,
                        "ratio": seconds[call] / fastest,
                        "preset ratio": by_preset[call] / fastest,
                    }
                )
    return rows


def conclude(model: str, rows: Sequence[dict[str, object]], smallest: bool) -> bool:
    """Print a model's targets; True if they are reached."""
    ratios = [float(str(row["ratio"])) for row in rows]
    near = sum(1 - MAX_DEVIATION <= ratio <= 1 + MAX_DEVIATION for ratio in ratios)
    totals: dict[str, list[float]] = {}
    for row in rows:
        # Only plans of one rank generate: with it, plans could not be compared.
        if row["call"] == "generate":
            continue
        sums = totals.setdefault(str(row["plan"]), [0.0, 0.0])
        sums[0] += float(str(row["predicted ms"]))
        sums[1] += float(str(row["measured ms"]))
    correlation = spearman(*zip(*totals.values(), strict=True))
    reached = near == len(ratios) and correlation >= MIN_CORRELATION
    print(
        f"{model}: {near} of {len(ratios)} calls within {MAX_DEVIATION:.0%} (ratios "
        f"{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}); "
        f"rank correlation of {len(totals)} plans {correlation:.3f}, "
        f"target at least {MIN_CORRELATION}: {target_result(reached, smallest=smallest)}",
        flush=True,
    )
    return reached


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    names = [model.name for model in (*MODELS, SMALLEST)]
    parser.add_argument("--model", choices=names, help="only this one")
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        choices=RANKS,
        default=RANKS,
        help="ranks of plans (default 1 2)",
    )
    parser.add_argument("--keep", type=Path, help="a folder for profiles; read if it has them")
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="count seconds in which processes computed, with one thread each: for a machine that "
        "does something else, too",
    )
    options = parse(parser, model=SMALLEST.name, ranks=[1])
    models = [
        model
        for model in (*MODELS, SMALLEST)
        if options.model == model.name or (options.model is None and model is not SMALLEST)
    ]
    # With several threads, CPU seconds would count threads that spin while they wait.
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
            rows += compare(model, by_ranks, folder, threads, options.cpu_seconds)
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
    profile_folder: Path | None,
) -> dict[int, Profile]:
    """Profiles of an earlier run, or measured now."""
    files = (
        {}
        if profile_folder is None
        else {ranks: profile_folder / f"{ranks}.profile.json" for ranks in numbers}
    )
    if files and all(file.is_file() for file in files.values()):
        return {r: Profile.model_validate_json(file.read_text()) for r, file in files.items()}
    profiles = measure_profiles(models, numbers, folder, threads, cpu_seconds)
    for ranks, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(profiles[ranks].to_json())
    return profiles


if __name__ == "__main__":
    main()
