"""`rlhf fetch`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

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


class FetchChoice(StrEnum):
    """Groups of files that can be fetched."""

    MODEL = "model"
    REPORT = "report"
    METRICS = "metrics"
    SAMPLES = "samples"
    SAVED = "saved"
    ALL = "all"


def fetch(
    name: JobName,
    what: Annotated[
        FetchChoice,
        typer.Argument(metavar="[model|report|metrics|samples|saved|all]", help="What to fetch."),
    ] = FetchChoice.MODEL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder that receives the files. Default: ./NAME."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    image: Image = None,
    claim: Claim = None,
    start_timeout: StartSeconds = 300,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Fetch a job's files, also after its cluster is deleted.

    Without a cluster, a short-lived pod reads the job's volume, or this machine the job's address.
    `samples` are prompts and responses, for `rlhf samples`; `saved` is what the algorithm's steps
    save, such as pairs; `all` is everything except the checkpoints.

    \b
    Examples:
      rlhf fetch sort-grpo
      rlhf fetch sort-grpo report
      rlhf fetch sort-grpo all --output /tmp/sort
    """
    from rlhf_cli.cluster.fetching import fetch_files
    from rlhf_cli.cluster.jobs import find_job
    from rlhf_cli.cluster.opening import ReadOptions, open_job_files

    cluster = connect_cluster(kubeconfig, context, namespace)
    job = find_job(cluster, name)
    options = ReadOptions(image, claim, float(start_timeout))
    with open_job_files(cluster, job, options, _notify) as opened:
        for path in fetch_files(job, opened, what, output or Path(job.name), _notify, force):
            typer.echo(str(path))


def _notify(text: str) -> None:
    typer.echo(text, err=True)
