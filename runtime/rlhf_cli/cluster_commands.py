"""The commands for jobs on a cluster: their options and help. Bodies are imported when they run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.guard import guarded
from rlhf_cli.options import Filename, Manifest, Overrides

if TYPE_CHECKING:
    from rlhf_cli.cluster.client import Cluster
    from rlhf_cli.cluster.opening import Reading

cluster_app = typer.Typer(rich_markup_mode=None)

JobName = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Default: KUBECONFIG, else ~/.kube/config."),
]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Default: the kubeconfig's current one."),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Default: the context's."),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image", help="What the pod that reads the volume runs. Default: the job's image."
    ),
]
Claim = Annotated[
    str | None,
    typer.Option(
        "--claim",
        metavar="CLAIM/FOLDER",
        help="The volume claim and folder to read. Default: the job's.",
    ),
]
StartSeconds = Annotated[
    int,
    typer.Option(
        "--start-timeout", min=1, metavar="SECONDS", help="How long that pod may take to start."
    ),
]


class StatusOutput(StrEnum):
    """The forms of a printed status for programs."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Fetched(StrEnum):
    """What can be fetched of a job."""

    MODEL = "model"
    REPORT = "report"
    METRICS = "metrics"
    ALL = "all"


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

    With --watch or --wait the exit code is the job's: 0 it succeeded, 2 the manifest or the cluster
    does not allow it, 3 your data or code, 4 it failed otherwise.

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
        _connected(kubeconfig, context, namespace),
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

    With a name and --watch the exit code is the job's: 0 it succeeded, 2 the manifest or the
    cluster does not allow it, 3 your data or code, 4 it failed otherwise.

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
    cluster = _connected(kubeconfig, context, namespace)
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

    describe_command(_connected(kubeconfig, context, namespace), name)


@cluster_app.command()
@guarded
def logs(
    name: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, metavar="N", help="Only the last N lines.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="R", help="Of a rank.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option("--worker", metavar="NAME", help="Of the data or reward host.")
    ] = None,
    driver: Annotated[
        bool, typer.Option("--driver", help="Of the driver; this is the default.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Kubernetes' events about the job instead.")
    ] = False,
    image: Image = None,
    claim: Claim = None,
    start_timeout: StartSeconds = 300,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Print what a job's processes wrote, also after its cluster is gone.

    Then a short-lived pod reads the job's volume, or this machine the job's address.

    \b
    Examples:
      rlhf logs sort-grpo
      rlhf logs sort-grpo --follow --tail 20
      rlhf logs sort-grpo --rank 0
      rlhf logs sort-grpo --worker reward
      rlhf logs sort-grpo --events
    """
    from rlhf_cli.cluster.logs import logs_command

    if sum((rank is not None, worker is not None, driver, events)) > 1:
        raise typer.BadParameter("give one of --rank, --worker, --driver, --events")
    if events and (follow or tail is not None):
        raise typer.BadParameter("--events are printed at once, and all: leave the others out")
    whose = worker if rank is None else f"rank-{rank}"
    cluster = _connected(kubeconfig, context, namespace)
    reading = _reading(image, claim, start_timeout)
    logs_command(cluster, name, whose, events, tail, follow, reading)


@cluster_app.command()
@guarded
def fetch(
    name: JobName,
    what: Annotated[
        Fetched, typer.Argument(metavar="[model|report|metrics|all]", help="What to fetch.")
    ] = Fetched.MODEL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to put it into. Default: ./NAME."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what lies there already.")
    ] = False,
    image: Image = None,
    claim: Claim = None,
    start_timeout: StartSeconds = 300,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Fetch a job's model, report or metrics, also after its cluster is gone.

    Then a short-lived pod reads the job's volume, or this machine the job's address. `all` is all
    but the checkpoints.

    \b
    Examples:
      rlhf fetch sort-grpo
      rlhf fetch sort-grpo report
      rlhf fetch sort-grpo all --output /tmp/sort
    """
    from rlhf_cli.cluster.fetch import fetch_command

    cluster = _connected(kubeconfig, context, namespace)
    reading = _reading(image, claim, start_timeout)
    fetch_command(cluster, name, what.value, output, force, reading)


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

    suspend_command(_connected(kubeconfig, context, namespace), name, wait)


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

    resume_command(_connected(kubeconfig, context, namespace), name, wait)


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

    cancel_command(_connected(kubeconfig, context, namespace), name, yes)


def _connected(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    from rlhf_cli.cluster import connect
    from rlhf_cli.cluster.client import Target

    return connect.connect(Target(kubeconfig, context, namespace))


def _reading(image: str | None, claim: str | None, start_seconds: int) -> Reading:
    from rlhf_cli.cluster.opening import Reading

    return Reading(image, claim, float(start_seconds))
