"""Other releases of the operator in the same cluster: their jobs are theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Forbidden, Kube
from rlhf_operator.decide.observed import ClusterSeen
from rlhf_operator.identity import Identity

log = logging.getLogger(__name__)
ASKED_AGAIN_SECONDS = 300.0


@dataclass
class Releases:
    """Whether who made a cluster is still installed. A release is there as long as its Lease is."""

    kube: Kube
    identity: Identity
    clock: Callable[[], float]
    _known: dict[str, tuple[float, bool]] = field(default_factory=dict)

    def other(self, clusters: Iterable[ClusterSeen]) -> str | None:
        """The release that looks after a job with these clusters. None: this one.

        Raises:
            KubeError: it could not be asked for.
        """
        for each in clusters:
            is_foreign = each.is_ours and each.has_other_key
            if is_foreign and each.release not in (None, self.identity.release):
                assert each.release is not None
                if self._is_installed(each.release):
                    return each.release
        return None

    def _is_installed(self, release: str) -> bool:
        asked, is_installed = self._known.get(release, (float("-inf"), False))
        if self.clock() - asked >= ASKED_AGAIN_SECONDS:
            is_installed = self._ask(release)
            if is_installed:
                log.warning(
                    "the operator %s has clusters of jobs: this one (%s) leaves those jobs alone",
                    release,
                    self.identity.release,
                    extra={"reason": "OtherRelease"},
                )
            self._known[release] = (self.clock(), is_installed)
        return is_installed

    def _ask(self, release: str) -> bool:
        namespace, is_name, name = release.partition("/")
        if not is_name:
            return False  # outside of a cluster, and so without a Lease
        try:
            return self.kube.get(Kind.LEASE, namespace, name) is not None
        except Forbidden:  # of whom nothing may be known nothing is taken away
            return True
