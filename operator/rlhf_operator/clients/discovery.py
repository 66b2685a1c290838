"""Check that the API server serves the kinds that the operator needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.errors import NotInstalled, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 30.0
"""Time limit for an API server that is starting, or has just learned of a kind."""
RETRY_SECONDS = 1.0


def serves(kube: Kube, kind: Kind, namespace: str | None) -> bool:
    """True if the API server serves a kind.

    Args:
        namespace: one that the operator may read; None: all.

    Raises:
        KubeError: it does not answer, or forbids the request.
    """
    try:
        # A list with an impossible label: the operator has the right to list anyway, and the
        # answer is empty.
        kube.list(kind, namespace, f"{JOB_LABEL}=none")
    except NotInstalled:
        return False
    return True


def check_job_kind(kube: Kube, namespace: str | None) -> None:
    """Check that the API server serves RLHFJobs.

    Raises:
        NotInstalled: it does not.
        KubeError: it does not answer, or forbids the request.
    """
    kind = Kind.JOB
    if not serves(kube, kind, namespace):
        raise NotInstalled(
            f"this cluster has no kind {kind.resource}/{kind.version}: apply "
            "crds/rlhf-operator.dev_rlhfjobs.yaml, or install the chart"
        )


def require_job_kind(
    kube: Kube,
    namespace: str | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Refuse to start if the API server does not serve RLHFJobs: nothing would ever happen.

    Args:
        namespace: one that the operator may read; None: all.

    Raises:
        Unreachable: no answer for PATIENCE_SECONDS.
        KubeError: the kind does not exist, or the request is forbidden.
    """
    deadline = clock() + PATIENCE_SECONDS
    while True:
        try:
            check_job_kind(kube, namespace)
            return
        # The operator often starts together with the cluster: wait a while before giving up.
        except Unreachable as error:
            if clock() >= deadline:
                raise
            log.warning("Kubernetes is not ready yet: %s", error)
        sleep(RETRY_SECONDS)
