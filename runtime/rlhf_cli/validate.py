"""`rlhf validate`: check manifests and list everything that is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import typer

from rlhf_api.errors import ManifestError, RlhfError, SeveralErrors
from rlhf_api.problems import Problem
from rlhf_api.reading.manifest import (
    decode,
    load_file,
    load_jobs,
    locate_overrides,
    locate_problems,
    read_limited,
)
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.cluster.errors import ExtraMissing

STDIN = Path("-")
Lines = Callable[[], AbstractContextManager[None]]
"""Says of problems that are found inside at which line of a manifest they are."""


def validate_command(
    files: Sequence[Path], overrides: Sequence[str] = (), deep: bool = False
) -> None:
    """Check each file; print its jobs or its problems.

    Args:
        files: manifests; `-` is standard input.
        overrides: PATH=VALUE texts of --set, for every job of every file.
        deep: whether to check also what manifests name, as a run does before it starts.

    Raises:
        typer.Exit: there are problems: with the highest exit code of them.
        OverrideError: an override that cannot be applied.
    """
    found = [_errors_of(file, overrides, deep) for file in files]
    errors = [error for of_file in found for error in of_file]
    if errors:
        problems = _counted(sum(map(num_problems, errors)), "problem")
        typer.echo(f"{problems} in {_counted(sum(map(bool, found)), 'file')}")
        raise typer.Exit(max(error.exit_code for error in errors))


def _errors_of(file: Path, overrides: Sequence[str], deep: bool) -> list[RlhfError]:
    """Say of each job of a file what is wrong with it, or that nothing is; give what is wrong."""
    shown = "<stdin>" if file == STDIN else str(file)
    try:
        jobs = jobs_of(file, overrides)
    except ManifestError as error:
        typer.echo(str(error))
        return [error]
    errors: list[RlhfError] = []
    for job in jobs:
        try:
            with lines_of(file, job, overrides):
                _check_objective(job)
            told = f"is valid{_unchecked(job, shown)}"
            if deep:
                told = _checked_deeply(job, file, overrides)
        except RlhfError as error:
            errors.append(error)
            for each in parts_of(error):
                where = f"{each.position or shown}: {each.reason}: "
                typer.echo(f"{'' if isinstance(each, ManifestError) else where}{each}")
        else:
            typer.echo(f"{shown}: {job.name} {told}")
    return errors


def _check_objective(job: RLHFJob) -> None:
    """Check that there are times to compare for it.

    Raises:
        TimesUnknown: there are none.
    """
    if job.spec.placement.objective.may_use_fewer_devices:
        from rlhf_planner.cost.pool_hardware import require_times

        require_times(job.spec.placement.objective, job.spec.resources.node_pools)


def _checked_deeply(job: RLHFJob, file: Path, overrides: Sequence[str]) -> str:
    """What there is to say about a job that could start.

    Raises:
        ExtraMissing: what reads data and models is not installed.
        RlhfError: all that is wrong with it.
    """
    try:
        from rlhf_cli.preflight import Target, checked
        from rlhf_runtime.preflight.limits import THOROUGH
    except ModuleNotFoundError as error:
        if str(error.name).startswith("rlhf_"):
            raise
        raise ExtraMissing(
            f"data and models are read by packages that the base install does not have: got "
            f"{error}; install the extra cpu or gpu, or leave --deep out"
        ) from error
    from rlhf_cli.local_jobs import localized
    from rlhf_cli.user_code import code_here
    from rlhf_flow.jobs.lint import lint_job
    from rlhf_planner.plan import pools_of

    job = localized(job, file, overrides)
    target = Target(
        pools=partial(pools_of, job),
        code=code_here(job),
        lines=partial(lines_of, file, job, overrides),
        one_machine=not job.spec.resources.node_pools,
    )
    with checked(job, target, THOROUGH) as ready:
        warnings: Sequence[str] = ()
        if ready.traced is not None:
            graphs, plan = ready.traced
            warnings = lint_job(job, graphs, plan.device)
        lines = [
            "is valid and can start",
            *ready.facts,
            *(f"not checked: {text}" for text in ready.unchecked),
            *(f"warning: {text}" for text in warnings),
        ]
    return "\n  ".join(lines)


def parts_of(error: RlhfError) -> Sequence[RlhfError]:
    """The errors that one stands for."""
    return error.errors if isinstance(error, SeveralErrors) else [error]


def num_problems(error: RlhfError) -> int:
    """How many things an error says are wrong."""
    return sum(
        len(each.problems) if isinstance(each, ManifestError) else 1 for each in parts_of(error)
    )


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
        RlhfError: what is raised inside, with its place, if it is about a field.
    """
    try:
        yield
    except ManifestError as error:
        placed = _with_places(error, file, job, overrides)
        if placed is error:
            raise
        raise placed from error
    except RlhfError as error:
        if error.location:
            about_it = ManifestError([Problem(error.location, "")])
            (problem,) = _with_places(about_it, file, job, overrides).problems
            error.position = problem.position
        raise


def _with_places(
    error: ManifestError, file: Path, job: RLHFJob, overrides: Sequence[str]
) -> ManifestError:
    """Problems of a loaded job with their places; without them where its text cannot be read again,
    because the file is gone or another one by now."""
    if file == STDIN:
        return locate_overrides(error, "<stdin>", overrides)
    try:
        return locate_problems(error, file, job.name, overrides)
    except RlhfError:
        return error


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
    return f"; its algorithm is code of your own: check it by `rlhf validate --deep {shown}`"
