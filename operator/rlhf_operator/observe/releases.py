"""Other releases of the operator in the same cluster, and the jobs that they manage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from rlhf_kube.errors import Forbidden
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube, Manifest
from rlhf_operator.decide.observed import ObservedCluster, OtherRelease
from rlhf_operator.identity import Identity

log = logging.getLogger(__name__)
RECHECK_SECONDS = 15.0
STOPPED_SECONDS = 90.0
"""A Lease that was not renewed for this long has no replica that acts. Clocks may differ a bit."""


@dataclass
class Releases:
    """Tracks the other installed releases: one is installed as long as its Lease exists."""

    kube: Kube
    identity: Identity
    clock: Callable[[], float]
    now: Callable[[], datetime]
    _checked: dict[str, tuple[float, OtherRelease | None]] = field(default_factory=dict)
    """By release: time of the last check, and its result."""

    def other(self, clusters: Iterable[ObservedCluster]) -> OtherRelease | None:
        """Return the other release that manages a job with these clusters. None: this one does.

        Raises:
            KubeError: the other release's Lease could not be read.
        """
        # A cluster with this operator's key is its own, whatever release created it.
        for cluster in clusters:
            is_foreign = cluster.is_owned and cluster.has_other_key
            if is_foreign and cluster.release not in (None, self.identity.release):
                assert cluster.release is not None
                release = self._find(cluster.release)
                if release is not None:
                    return release
        return None

    def _find(self, name: str) -> OtherRelease | None:
        checked, release = self._checked.get(name, (float("-inf"), None))
        if self.clock() - checked >= RECHECK_SECONDS:
            before, release = release, self._read(name)
            if release is not None and before is None:
                log.warning(
                    "the operator %s has clusters of jobs, which this one (%s) does not touch",
                    name,
                    self.identity.release,
                    extra={"reason": "OtherRelease"},
                )
            self._checked[name] = (self.clock(), release)
        return release

    def _read(self, release: str) -> OtherRelease | None:
        namespace, is_name, name = release.partition("/")
        if not is_name:
            return None  # an operator outside of a cluster has no Lease
        try:
            lease = self.kube.get(Kind.LEASE, namespace, name)
        except Forbidden:
            # The release may exist: better leave its clusters alone than delete them.
            return OtherRelease(release, acts=True)
        return None if lease is None else OtherRelease(release, self._is_renewed(lease))

    def _is_renewed(self, lease: Manifest) -> bool:
        spec = lease.get("spec") or {}
        if not spec.get("holderIdentity") or not spec.get("renewTime"):
            return False
        age = self.now() - datetime.fromisoformat(spec["renewTime"])
        return age.total_seconds() < STOPPED_SECONDS
