"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlhf_kube.protocol import Cluster

Manifest = Annotated[
    Path, typer.Argument(metavar="FILE", help="The manifest; - is standard input.")
]
# `kubectl apply -f FILE` is in many fingers: -f is accepted, and means nothing.
Filename = Annotated[bool, typer.Option("-f", help="Allowed before FILE, as for kubectl.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field before the manifest is checked; repeatable.",
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,  # the limit of devices per node in resources.nodePools
        help="Devices of this machine. Default: all GPUs, or one CPU rank if there are none; "
        "`plan` uses the manifest's nodePools if it has any.",
    ),
]
Inject = Annotated[
    list[str] | None,
    typer.Option("--inject", metavar="FAULT", help="Cause a fault on purpose; repeatable."),
]

JobName = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Default: KUBECONFIG, else ~/.kube/config."),
]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Default: the kubeconfig's current context."),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Default: the context's namespace."),
]

Image = Annotated[
    str | None,
    typer.Option(
        "--image", help="Image of the pod that reads the volume. Default: the job's image."
    ),
]
Claim = Annotated[
    str | None,
    typer.Option(
        "--claim",
        metavar="CLAIM/FOLDER",
        help="Volume claim and folder to read. Default: the job's.",
    ),
]
StartSeconds = Annotated[
    int,
    typer.Option("--start-timeout", min=1, metavar="SECONDS", help="Start timeout of that pod."),
]


def connect_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    """The cluster that the options select. Raises as `rlhf_cli.cluster.connect.connect`."""
    from rlhf_cli.cluster import connect
    from rlhf_cli.cluster.connect import ClusterTarget

    return connect.connect(ClusterTarget(kubeconfig, context, namespace))
