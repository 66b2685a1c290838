"""Connect to the cluster that kubectl's options select."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.cluster.errors import ClusterTooOld, ExtraMissing
from rlhf_kube.errors import KubeconfigUnusable
from rlhf_kube.protocol import Caller, Cluster

MIN_VERSION = (1, 29)
"""First Kubernetes version that enforces all validation rules of the RLHFJob CRD."""
CALLER = Caller("rlhf", "you", answer_seconds=60.0, busy_seconds=30.0)


@dataclass(frozen=True)
class ClusterTarget:
    """The cluster and namespace that kubectl's options select."""

    kubeconfig: Path | None = None
    """Default: what KUBECONFIG names, else ~/.kube/config, else the pod's own account."""
    context: str | None = None
    """Default: the kubeconfig's current one."""
    namespace: str | None = None
    """Default: the context's, else default."""


def kubeconfig_files(
    requested: Path | None, environment: Mapping[str, str], home: Path
) -> tuple[Path, ...]:
    """The files that kubectl would merge, whether they exist or not; earlier ones win.

    Args:
        requested: the value of --kubeconfig.
        environment: this process's variables.
        home: the user's home folder.
    """
    # As kubectl: --kubeconfig replaces the variable, which may name several files.
    if requested is not None:
        return (requested,)
    paths = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    if paths:
        return tuple(Path(path).expanduser() for path in paths)
    return (home / ".kube" / "config",)


def connect(target: ClusterTarget) -> Cluster:
    """Return the selected cluster. No request is sent yet.

    Raises:
        ExtraMissing: the kubernetes package is not installed.
        KubeconfigUnusable: the kubeconfig does not name a cluster.
    """
    # Imported here, because the base install lacks the kubernetes package.
    try:
        from rlhf_kube.api_server import POD_NAMESPACE, ApiServer
        from rlhf_kube.client import KubeClient
    except ModuleNotFoundError as error:
        # Another missing module is a fault of the installation, and not of the user.
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3", "websocket"):
            raise
        raise ExtraMissing(
            f"commands for clusters need the kubernetes package: got {error}; install the extra "
            'cluster, such as by `uv pip install "rlhf-operator[cluster]"`'
        ) from error
    files = kubeconfig_files(target.kubeconfig, os.environ, Path.home())
    existing = tuple(file for file in files if file.is_file())
    is_named = target.kubeconfig is not None or target.context is not None
    if existing:
        server = ApiServer.from_kubeconfig(existing, target.context, CALLER.name)
    elif POD_NAMESPACE.is_file() and not is_named:
        # In a pod without a kubeconfig: the pod's service account.
        server = ApiServer.in_cluster(CALLER.name)
    else:
        raise KubeconfigUnusable(
            f"no cluster is configured: got no file at {', '.join(map(str, files))}; give "
            "--kubeconfig, or set KUBECONFIG"
        )
    return KubeClient(server, CALLER, target.namespace or server.namespace)


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
