"""Whether Kubernetes knows the kinds that the operator works on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Invalid, Kube, Unreachable

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 30.0
"""For an API server that is being started, or that has learned of a kind just now."""
RETRY_SECONDS = 1.0
ADVICE = "apply crds/rlhf-operator.dev_rlhfjobs.yaml, or install the chart"


def knows(kube: Kube, kind: Kind, namespace: str | None) -> bool:
    """Whether Kubernetes knows a kind.

    Args:
        namespace: one that the operator may read; None: all.

    Raises:
        KubeError: it does not answer, or may not show it.
    """
    try:
        kube.list(kind, namespace, f"{JOB_LABEL}=none")
    except Invalid:
        return False
    return True


def require_jobs(
    kube: Kube,
    namespace: str | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Refuse to start where an operator could only be deaf: where nobody knows RLHFJobs.

    Args:
        namespace: one that the operator may read; None: all.

    Raises:
        Unreachable: Kubernetes did not answer for PATIENCE_SECONDS.
        KubeError: it does not know the kind, or may not show it.
    """
    deadline = clock() + PATIENCE_SECONDS
    kind = Kind.JOB
    while True:
        try:
            if knows(kube, Kind.JOB, namespace):
                return
        except Unreachable as error:
            if clock() >= deadline:
                raise
            log.warning("Kubernetes is not ready yet: %s", error)
        else:
            name = f"{kind.plural}.{kind.group}/{kind.version}"
            raise Invalid(f"this cluster does not know {name}: {ADVICE}")
        sleep(RETRY_SECONDS)
