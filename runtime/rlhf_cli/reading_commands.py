"""The commands that read what a job on a cluster has written: their options and help.

Bodies are imported when they run.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.cluster_options import Context, JobName, Kubeconfig, Namespace, connected
from rlhf_cli.guard import guarded

if TYPE_CHECKING:
    from rlhf_cli.cluster.opening import Reading

reading_app = typer.Typer(rich_markup_mode=None)

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


class Fetched(StrEnum):
    """What can be fetched of a job."""

    MODEL = "model"
    REPORT = "report"
    METRICS = "metrics"
    SAVED = "saved"
    ALL = "all"


@reading_app.command()
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
    cluster = connected(kubeconfig, context, namespace)
    reading = _reading(image, claim, start_timeout)
    logs_command(cluster, name, whose, events, tail, follow, reading)


@reading_app.command()
@guarded
def fetch(
    name: JobName,
    what: Annotated[
        Fetched, typer.Argument(metavar="[model|report|metrics|saved|all]", help="What to fetch.")
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

    Then a short-lived pod reads the job's volume, or this machine the job's address. `saved` is
    what its steps save, such as pairs; `all` is all but the checkpoints.

    \b
    Examples:
      rlhf fetch sort-grpo
      rlhf fetch sort-grpo report
      rlhf fetch sort-grpo all --output /tmp/sort
    """
    from rlhf_cli.cluster.fetch import fetch_command

    cluster = connected(kubeconfig, context, namespace)
    reading = _reading(image, claim, start_timeout)
    fetch_command(cluster, name, what.value, output, force, reading)


def _reading(image: str | None, claim: str | None, start_seconds: int) -> Reading:
    from rlhf_cli.cluster.opening import Reading

    return Reading(image, claim, float(start_seconds))
