"""From kubectl's options to a cluster. The kubernetes package is imported here, and only now."""

from __future__ import annotations

from rlhf_cli.cluster.client import Cluster, Target
from rlhf_cli.cluster.errors import ClusterTooOld, ExtraMissing

OLDEST = (1, 29)
"""The first version whose API server checks RLHFJobs as their definition asks for."""


def connect(target: Target) -> Cluster:
    """The cluster that is meant. Nothing is sent yet.

    Raises:
        ExtraMissing: the kubernetes package is not installed.
        KubeconfigUnusable: which cluster is meant cannot be found out.
    """
    try:
        from rlhf_cli.cluster.remote import RemoteCluster
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3", "websocket"):
            raise
        raise ExtraMissing(
            f"commands for clusters need the kubernetes package: got {error}; install the extra "
            'cluster, as by `uv pip install "rlhf-operator[cluster]"`'
        ) from error
    return RemoteCluster(target)


def require_version(cluster: Cluster) -> None:
    """Check that the API server is young enough.

    Raises:
        ClusterTooOld: it is not.
    """
    version = cluster.version()
    if version < OLDEST:
        raise ClusterTooOld(
            f"this cluster is too old for RLHFJobs: got Kubernetes {_text(version)}, allowed "
            f"{_text(OLDEST)} and later; upgrade it, or choose another --context"
        )


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
