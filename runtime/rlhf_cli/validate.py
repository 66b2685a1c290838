"""`rlhf validate`: check manifests and list everything that is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from rlhf_api.errors import ManifestError
from rlhf_api.exits import ExitCode
from rlhf_api.problems import Problem
from rlhf_api.reading.manifest import decode, load_file, load_jobs, read_limited, with_lines
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob

STDIN = Path("-")


def validate_command(files: Sequence[Path]) -> None:
    """Check each file; print its jobs or its problems. Raises typer.Exit(2) if there are any."""
    num_problems = num_bad_files = 0
    for file in files:
        try:
            jobs = jobs_of(file)
        except ManifestError as error:
            num_bad_files += 1
            num_problems += len(error.problems)
            for problem in error.problems:
                typer.echo(str(problem))
        else:
            shown = "<stdin>" if file == STDIN else str(file)
            for job in jobs:
                typer.echo(f"{shown}: {job.name} is valid{_unchecked(job, shown)}")
    if num_problems:
        typer.echo(f"{_counted(num_problems, 'problem')} in {_counted(num_bad_files, 'file')}")
        raise typer.Exit(ExitCode.MANIFEST)


def jobs_of(file: Path, overrides: Sequence[str] = ()) -> list[RLHFJob]:
    """Load the jobs of a file, or of standard input for `-`. Raises ManifestError."""
    if file != STDIN:
        return load_file(file, overrides)
    text = decode(read_limited(sys.stdin.buffer), "<stdin>")
    return load_jobs(text, "<stdin>", overrides)


@contextmanager
def lines_of(file: Path, job: RLHFJob, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Say of problems that are found in a loaded job at which line of its file they are.

    Raises:
        ManifestError: there are some.
    """
    try:
        yield
    except ManifestError as error:
        if file == STDIN:
            raise
        raise with_lines(error, file, job.name, overrides) from error


def only_job(jobs: Sequence[RLHFJob], file: Path) -> RLHFJob:
    """The job of a file that must hold one.

    Raises:
        ManifestError: it holds several.
    """
    if len(jobs) != 1:
        names = ", ".join(job.name for job in jobs)
        raise ManifestError(
            [
                Problem(
                    (),
                    "one job is trained at a time",
                    got=f"{len(jobs)} jobs ({names})",
                    allowed="a file with one",
                    do="put each job in a file of its own",
                    file=str(file),
                )
            ]
        )
    return jobs[0]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def _unchecked(job: RLHFJob, shown: str) -> str:
    """What a look at the manifest alone cannot tell."""
    if job.spec.algorithm.type is not AlgorithmType.CUSTOM:
        return ""
    return f"; its algorithm is code of your own, which only `rlhf plan {shown}` checks"
