"""Check that the API server serves the kinds that the operator needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Invalid, Kube, Unreachable

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 30.0
"""Time limit for an API server that is starting, or has just learned of a kind."""
RETRY_SECONDS = 1.0
ADVICE = "apply crds/rlhf-operator.dev_rlhfjobs.yaml, or install the chart"


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
    except Invalid:
        return False
    return True


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
    kind = Kind.JOB
    while True:
        try:
            if serves(kube, Kind.JOB, namespace):
                return
        # The operator often starts together with the cluster: wait a while before giving up.
        except Unreachable as error:
            if clock() >= deadline:
                raise
            log.warning("Kubernetes is not ready yet: %s", error)
        else:
            name = f"{kind.plural}.{kind.group}/{kind.version}"
            raise Invalid(f"this cluster has no kind {name}: {ADVICE}")
        sleep(RETRY_SECONDS)
