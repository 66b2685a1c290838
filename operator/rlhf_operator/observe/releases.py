"""Other releases of the operator in the same cluster, and the jobs that they manage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rlhf_kube.errors import Forbidden
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube
from rlhf_operator.decide.observed import ObservedCluster
from rlhf_operator.identity import Identity

log = logging.getLogger(__name__)
RECHECK_SECONDS = 300.0


@dataclass
class Releases:
    """Tracks the other installed releases: one is installed as long as its Lease exists."""

    kube: Kube
    identity: Identity
    clock: Callable[[], float]
    _checked: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """By release: time of the last check, and its result."""

    def other(self, clusters: Iterable[ObservedCluster]) -> str | None:
        """Return the other release that manages a job with these clusters. None: this one does.

        Raises:
            KubeError: the other release's Lease could not be read.
        """
        # A cluster with this operator's key is its own, whatever release created it.
        for cluster in clusters:
            is_foreign = cluster.is_owned and cluster.has_other_key
            if is_foreign and cluster.release not in (None, self.identity.release):
                assert cluster.release is not None
                if self._is_installed(cluster.release):
                    return cluster.release
        return None

    def _is_installed(self, release: str) -> bool:
        checked, is_installed = self._checked.get(release, (float("-inf"), False))
        if self.clock() - checked >= RECHECK_SECONDS:
            is_installed = self._has_lease(release)
            if is_installed:
                log.warning(
                    "the operator %s has clusters of jobs, which this one (%s) does not touch",
                    release,
                    self.identity.release,
                    extra={"reason": "OtherRelease"},
                )
            self._checked[release] = (self.clock(), is_installed)
        return is_installed

    def _has_lease(self, release: str) -> bool:
        namespace, is_name, name = release.partition("/")
        if not is_name:
            return False  # an operator outside of a cluster has no Lease
        try:
            return self.kube.get(Kind.LEASE, namespace, name) is not None
        except Forbidden:
            # The release may exist: better leave its clusters alone than delete them.
            return True
