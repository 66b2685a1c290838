"""`rlhf validate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import Filename, Overrides

if TYPE_CHECKING:
    from rlhf_api.errors import RlhfError
    from rlhf_api.spec.job import RLHFJob


def validate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Manifests; - is standard input.")
    ],
    overrides: Overrides = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Check also data, models, verifiers, code and plan: all that a run checks before "
            "it starts, and every row. Packages of code.requirements are installed. Verifiers "
            "and services score the answers of a few rows; two conversations with every "
            "environment are played.",
        ),
    ] = False,
    _filename: Filename = False,
) -> None:
    """List everything that is wrong with manifests.

    Each problem has its line, the reason and a remedy.

    \b
    Examples:
      rlhf validate job.yaml
      rlhf validate --deep job.yaml
      rlhf validate examples/*.yaml
      rlhf validate job.yaml --set spec.schedule.steps=300
      helm template . | rlhf validate -
    """
    errors_by_file = [validate_file(file, overrides or [], deep) for file in files]
    errors = [error for errors in errors_by_file for error in errors]
    if errors:
        problems = _plural(sum(map(count_problems, errors)), "problem")
        typer.echo(f"{problems} in {_plural(sum(map(bool, errors_by_file)), 'file')}")
        raise typer.Exit(max(error.exit_code for error in errors))


def validate_file(file: Path, overrides: Sequence[str], deep: bool) -> list[RlhfError]:
    """Check the jobs of a file, print the result of each, and return the errors.

    Args:
        file: the manifest; `-` is standard input.
        overrides: PATH=VALUE texts of --set.
        deep: check also what a run checks before it starts.
    """
    from rlhf_api.errors import ManifestError, RlhfError
    from rlhf_cli.manifests import STDIN, annotate_lines, read_jobs

    shown = "<stdin>" if file == STDIN else str(file)
    try:
        jobs = read_jobs(file, overrides)
    except ManifestError as error:
        typer.echo(str(error))
        return [error]
    errors: list[RlhfError] = []
    for job in jobs:
        try:
            with annotate_lines(file, job, overrides):
                _check_objective(job)
            result = f"is valid{_unchecked_text(job, shown)}"
            if deep:
                result = _check_deeply(job, file, overrides)
            result += _deprecations_text(job)
        except RlhfError as error:
            errors.append(error)
            for part in split_error(error):
                prefix = f"{part.position or shown}: {part.reason}: "
                typer.echo(f"{'' if isinstance(part, ManifestError) else prefix}{part}")
        else:
            typer.echo(f"{shown}: {job.name} {result}")
    return errors


def _check_objective(job: RLHFJob) -> None:
    """Check that the objective's candidate placements have known step times.

    Raises:
        TimesUnknown: they have not.
    """
    if job.spec.placement.objective.may_use_fewer_devices:
        from rlhf_planner.cost.pool_hardware import require_times

        require_times(job.spec.placement.objective, job.spec.resources.node_pools)


def _check_deeply(job: RLHFJob, file: Path, overrides: Sequence[str]) -> str:
    """Run the checks before a start; return lines of facts and warnings.

    Raises:
        ExtraMissing: the packages that read data and models are not installed.
        RlhfError: all problems of the job.
    """
    from functools import partial

    from rlhf_cli.cluster.errors import ExtraMissing

    try:
        from rlhf_cli.preflight import RunTarget, preflight
        from rlhf_runtime.preflight.findings import THOROUGH
    except ModuleNotFoundError as error:
        # A missing module of rlhf itself is a fault of the installation.
        if str(error.name).startswith("rlhf_"):
            raise
        raise ExtraMissing(
            f"data and models are read by packages that the base install does not have: got "
            f"{error}; install the extra cpu or gpu, or leave --deep out"
        ) from error
    from rlhf_cli.local_jobs import localize
    from rlhf_cli.manifests import annotate_lines
    from rlhf_cli.user_code import local_user_code
    from rlhf_flow.jobs.lint import lint_job
    from rlhf_planner.plan import pools_of

    job = localize(job, file, overrides)
    target = RunTarget(
        pools=partial(pools_of, job),
        code=local_user_code(job),
        lines=partial(annotate_lines, file, job, overrides),
        one_machine=not job.spec.resources.node_pools,
    )
    with preflight(job, target, THOROUGH) as ready:
        warnings: Sequence[str] = ()
        if ready.graphs_and_plan is not None:
            graphs, plan = ready.graphs_and_plan
            warnings = lint_job(job, graphs, plan.device)
        lines = [
            "is valid and can start",
            *ready.facts,
            *(f"not checked: {text}" for text in ready.unchecked),
            *(f"warning: {text}" for text in (*ready.warnings, *warnings)),
        ]
    return "\n  ".join(lines)


def split_error(error: RlhfError) -> Sequence[RlhfError]:
    """The single errors that an error consists of."""
    from rlhf_api.errors import SeveralErrors

    return error.errors if isinstance(error, SeveralErrors) else [error]


def count_problems(error: RlhfError) -> int:
    """The number of problems that an error lists."""
    from rlhf_api.errors import ManifestError

    return sum(
        len(part.problems) if isinstance(part, ManifestError) else 1 for part in split_error(error)
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def _unchecked_text(job: RLHFJob, shown: str) -> str:
    """A hint at --deep for algorithms of the user's own, which need their code to be checked."""
    from rlhf_api.spec.algorithm import AlgorithmType

    if job.spec.algorithm.type is not AlgorithmType.CUSTOM:
        return ""
    return f"; its algorithm is code of your own: check it by `rlhf validate --deep {shown}`"


def _deprecations_text(job: RLHFJob) -> str:
    """Lines about deprecated fields that the job has."""
    from rlhf_api.deprecations import deprecations_in

    lines = [f"\n  warning: {entry.message}" for entry in deprecations_in(job.spec)]
    return "".join(lines)
