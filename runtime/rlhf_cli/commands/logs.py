"""`rlhf logs`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from rlhf_cli.options import (
    Claim,
    Context,
    Image,
    JobName,
    Kubeconfig,
    Namespace,
    StartSeconds,
    connect_cluster,
)

if TYPE_CHECKING:
    from rlhf_cli.cluster.opening import ReadOptions
    from rlhf_kube.protocol import Cluster


def logs(
    name: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the job has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, metavar="N", help="Print the last N lines only.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="R", help="The log of a rank.")
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option("--worker", metavar="NAME", help="The log of the data or reward host."),
    ] = None,
    driver: Annotated[
        bool, typer.Option("--driver", help="The log of the driver; this is the default.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Kubernetes' events about the job instead of a log.")
    ] = False,
    image: Image = None,
    claim: Claim = None,
    start_timeout: StartSeconds = 300,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Print a log of a job, also after its cluster is deleted.

    Without a cluster, a short-lived pod reads the job's volume, or this machine the job's address.

    \b
    Examples:
      rlhf logs sort-grpo
      rlhf logs sort-grpo --follow --tail 20
      rlhf logs sort-grpo --rank 0
      rlhf logs sort-grpo --worker reward
      rlhf logs sort-grpo --events
    """
    from rlhf_cli.cluster.events import events_table, list_events
    from rlhf_cli.cluster.jobs import find_job
    from rlhf_cli.cluster.opening import ReadOptions

    # --driver is the default, and exists so that scripts can say it.
    if sum((rank is not None, worker is not None, driver, events)) > 1:
        raise typer.BadParameter("give one of --rank, --worker, --driver, --events")
    if events and (follow or tail is not None):
        raise typer.BadParameter("--events prints all events once: leave --follow and --tail out")
    cluster = connect_cluster(kubeconfig, context, namespace)
    if events:
        job = find_job(cluster, name)
        typer.echo(events_table(list_events(cluster, job), datetime.now(UTC)), nl=False)
        return
    log = worker if rank is None else f"rank-{rank}"
    options = ReadOptions(image, claim, float(start_timeout))
    print_log(cluster, name, log, tail, follow, options)


def print_log(
    cluster: Cluster,
    name: str,
    worker: str | None,
    tail: int | None,
    follow: bool,
    options: ReadOptions,
    out: BinaryIO | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Print a log of a job.

    Args:
        worker: rank-0, data, reward or the like; None: the driver.
        tail: how many of its last lines; None: all.
        follow: print what is added until the job has ended.
        out: the destination; default: standard output.
        pause: sleeps so many seconds between two reads.

    Raises:
        NothingToRead: the log does not exist.
    """
    from rlhf_cli.cluster.jobs import find_job
    from rlhf_cli.cluster.log_printer import LogName, LogPrinter

    job = find_job(cluster, name)
    printer = LogPrinter(cluster, LogName(worker), tail, options, out or sys.stdout.buffer)
    if follow and not job.has_ended:
        printer.follow(name, pause)
    else:
        printer.print_once(job)
