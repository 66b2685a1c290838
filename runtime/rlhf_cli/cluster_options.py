"""Arguments and options of all commands for jobs on a cluster, and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlhf_cli.cluster.client import Cluster

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


def connected(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    """The cluster that these options mean. Raises as `rlhf_cli.cluster.connect.connect`."""
    from rlhf_cli.cluster import connect
    from rlhf_cli.cluster.client import Target

    return connect.connect(Target(kubeconfig, context, namespace))
