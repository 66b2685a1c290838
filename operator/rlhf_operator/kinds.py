"""Whether Kubernetes knows what the operator works on: asked once, before anything is watched."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_operator.kube.protocol import Invalid, Kind, Kube, Unreachable

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 30.0
"""For an API server that is being started, or that has learned of a kind just now."""
RETRY_SECONDS = 1.0
INSTALLERS = {
    Kind.JOB: "apply crds/rlhf-operator.dev_rlhfjobs.yaml, or install the chart",
    Kind.CLUSTER: "install KubeRay 1.6 or newer",
}


def require_kinds(
    kube: Kube,
    namespace: str | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Refuse to start where an operator could only be deaf.

    Args:
        namespace: one that the operator may read; None: all.

    Raises:
        Unreachable: Kubernetes did not answer for PATIENCE_SECONDS.
        KubeError: it does not know what the operator works on, or may not show it.
    """
    deadline = clock() + PATIENCE_SECONDS
    for kind, advice in INSTALLERS.items():
        while not _is_known(kube, kind, namespace, advice, is_last=clock() >= deadline):
            sleep(RETRY_SECONDS)


def _is_known(kube: Kube, kind: Kind, namespace: str | None, advice: str, is_last: bool) -> bool:
    try:
        kube.list(kind, namespace, f"{JOB_LABEL}=none")
    except Unreachable as error:
        if is_last:
            raise
        log.warning("Kubernetes is not ready yet: %s", error)
        return False
    except Invalid as error:
        name = f"{kind.value.plural}.{kind.value.group}/{kind.value.version}"
        raise Invalid(f"this cluster does not know {name}: {advice} ({error})") from error
    return True
