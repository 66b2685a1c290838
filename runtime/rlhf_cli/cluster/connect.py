"""Connect to the cluster that kubectl's options select."""

from __future__ import annotations

from rlhf_cli.cluster.client import Cluster, ClusterTarget
from rlhf_cli.cluster.errors import ClusterTooOld, ExtraMissing

MIN_VERSION = (1, 29)
"""First Kubernetes version that enforces all validation rules of the RLHFJob CRD."""


def connect(target: ClusterTarget) -> Cluster:
    """Return the selected cluster. No request is sent yet.

    Raises:
        ExtraMissing: the kubernetes package is not installed.
        KubeconfigUnusable: the kubeconfig does not name a cluster.
    """
    # Imported here, because the base install lacks the kubernetes package.
    try:
        from rlhf_cli.cluster.remote import RemoteCluster
    except ModuleNotFoundError as error:
        # Another missing module is a fault of the installation, and not of the user.
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3", "websocket"):
            raise
        raise ExtraMissing(
            f"commands for clusters need the kubernetes package: got {error}; install the extra "
            'cluster, such as by `uv pip install "rlhf-operator[cluster]"`'
        ) from error
    return RemoteCluster(target)


def require_version(cluster: Cluster) -> None:
    """Check the API server's version.

    Raises:
        ClusterTooOld: it is below MIN_VERSION.
    """
    version = cluster.version()
    if version < MIN_VERSION:
        raise ClusterTooOld(
            f"this cluster is too old for RLHFJobs: got Kubernetes {_text(version)}, allowed "
            f"{_text(MIN_VERSION)} and later; upgrade it, or choose another --context"
        )


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
