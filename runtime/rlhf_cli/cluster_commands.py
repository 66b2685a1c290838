"""The commands that submit, show and steer jobs on a cluster: their options and help.

Bodies are imported when they run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rlhf_cli.cluster_options import Context, JobName, Kubeconfig, Namespace, connected
from rlhf_cli.guard import guarded
from rlhf_cli.options import Filename, Manifest, Overrides

cluster_app = typer.Typer(rich_markup_mode=None)


class StatusOutput(StrEnum):
    """The forms of a printed status for programs."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@cluster_app.command()
@guarded
def submit(
    file: Manifest,
    overrides: Overrides = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the progress until the end.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return at the end; one line for each change.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the API server check it, and keep nothing.")
    ] = False,
    force_conflicts: Annotated[
        bool, typer.Option("--force-conflicts", help="Take over fields that others have set.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    _filename: Filename = False,
) -> None:
    """Submit the jobs of a file to a cluster, after the checks of `rlhf validate`.

    With --watch or --wait the exit code is the job's: 0 it succeeded, 1 a fault of rlhf, 2 the
    manifest or the cluster does not allow it, 3 your data or code, 4 it failed otherwise.

    \b
    Examples:
      rlhf submit job.yaml
      rlhf submit job.yaml --watch
      rlhf submit job.yaml --set spec.schedule.steps=300 -n team-a
      rlhf submit job.yaml --dry-run
    """
    from rlhf_cli.cluster.submit import submit_command
    from rlhf_cli.validate import jobs_of

    jobs = jobs_of(file, overrides or [])
    submit_command(
        connected(kubeconfig, context, namespace),
        file,
        jobs,
        namespace,
        dry_run=dry_run,
        force=force_conflicts,
        wait=wait,
        watch=watch,
    )


@cluster_app.command()
@guarded
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A job; without it all of them.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show changes; of one job until its end.")
    ] = False,
    output: Annotated[
        StatusOutput | None, typer.Option("--output", "-o", help="For programs.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show jobs on a cluster: all in a table, or one on a page.

    With a name and --watch the exit code is the job's: 0 it succeeded, 1 a fault of rlhf, 2 the
    manifest or the cluster does not allow it, 3 your data or code, 4 it failed otherwise.

    \b
    Examples:
      rlhf status
      rlhf status sort-grpo
      rlhf status sort-grpo --watch
      rlhf status sort-grpo -o json
      rlhf status --all-namespaces
    """
    from rlhf_cli.cluster.status import status_command

    form = None if output is None else output.value
    if name is not None and all_namespaces:
        raise typer.BadParameter("a job is in one namespace: give -n", param_hint="-A")
    if watch and form is not None:
        raise typer.BadParameter("it is shown for people: leave -o out", param_hint="--watch")
    cluster = connected(kubeconfig, context, namespace)
    status_command(cluster, name, form, watch, all_namespaces)


@cluster_app.command()
@guarded
def describe(
    name: JobName,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show all about a job on a cluster: status, pods and what is wrong with them, events.

    \b
    Examples:
      rlhf describe sort-grpo
    """
    from rlhf_cli.cluster.describe import describe_command

    describe_command(connected(kubeconfig, context, namespace), name)


@cluster_app.command()
@guarded
def suspend(
    name: JobName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when it has given its cluster back.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Let a job save, give its cluster back and wait.

    \b
    Examples:
      rlhf suspend sort-grpo
      rlhf suspend sort-grpo --wait
    """
    from rlhf_cli.cluster.suspend import suspend_command

    suspend_command(connected(kubeconfig, context, namespace), name, wait)


@cluster_app.command()
@guarded
def resume(
    name: JobName,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it runs again.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Let a suspended job go on from its newest checkpoint.

    \b
    Examples:
      rlhf resume sort-grpo
      rlhf resume sort-grpo --wait
    """
    from rlhf_cli.cluster.suspend import resume_command

    resume_command(connected(kubeconfig, context, namespace), name, wait)


@cluster_app.command()
@guarded
def cancel(
    name: JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Delete a job and its cluster; what it has written stays.

    \b
    Examples:
      rlhf cancel sort-grpo
      rlhf cancel sort-grpo --yes
    """
    from rlhf_cli.cluster.cancel import cancel_command

    cancel_command(connected(kubeconfig, context, namespace), name, yes)
