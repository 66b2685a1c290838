"""Read the jobs of a manifest, and add line numbers to errors about their fields."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.problems import Problem
from rlhf_api.reading.manifest import (
    decode,
    load_file,
    load_jobs,
    locate_overrides,
    locate_problems,
    read_limited,
)
from rlhf_api.spec.job import RLHFJob

STDIN = Path("-")
LineContext = Callable[[], AbstractContextManager[None]]
"""Makes a context that adds line numbers of a manifest to errors raised inside."""


def read_jobs(file: Path, overrides: Sequence[str] = ()) -> list[RLHFJob]:
    """Load the jobs of a file, or of standard input for `-`. Raises ManifestError."""
    if file != STDIN:
        return load_file(file, overrides)
    text = decode(read_limited(sys.stdin.buffer), "<stdin>")
    return load_jobs(text, "<stdin>", overrides)


def require_one_job(jobs: Sequence[RLHFJob], file: Path) -> RLHFJob:
    """Return the job of a file that must have exactly one.

    Raises:
        ManifestError: it has several.
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


@contextmanager
def annotate_lines(file: Path, job: RLHFJob, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Add line numbers of a job's file to errors that are raised inside.

    Raises:
        ManifestError: with the lines of its fields.
        RlhfError: any other error; with a line if it is about a field.
    """
    try:
        yield
    except ManifestError as error:
        located = _locate(error, file, job, overrides)
        if located is error:
            raise
        raise located from error
    except RlhfError as error:
        if error.location:
            # Positions are computed for ManifestErrors only, so the field is looked up by one.
            field = ManifestError([Problem(error.location, "")])
            (problem,) = _locate(field, file, job, overrides).problems
            error.position = problem.position
        raise


def _locate(
    error: ManifestError, file: Path, job: RLHFJob, overrides: Sequence[str]
) -> ManifestError:
    if file == STDIN:
        return locate_overrides(error, "<stdin>", overrides)
    try:
        return locate_problems(error, file, job.name, overrides)
    except RlhfError:
        # The file was deleted or changed since the job was loaded: its lines are unknown.
        return error
