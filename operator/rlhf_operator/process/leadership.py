"""Leader election: the replica that holds the release's Lease acts.

As in Kubernetes' own controllers, a holder counts as dead when its Lease has not changed for the
Lease's duration by the observer's clock: the clocks of two nodes need not agree.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf_kube.errors import Conflict, KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube
from rlhf_operator.process.stop import Stop

log = logging.getLogger(__name__)
LEASE_SECONDS = 15
"""Duration without renewal after which another replica takes over."""
RENEW_SECONDS = 5.0
"""Between two renewals, and between two tries to acquire the Lease."""
GIVE_UP_SECONDS = 10.0
"""A holder that cannot renew for this long stops acting: another replica may soon take over."""


class LeaseLost(Exception):
    """Another replica may act: this one ends, and is started again."""


@dataclass
class Leadership:
    """One replica's view of the Lease."""

    kube: Kube
    namespace: str
    name: str
    identity: str
    """Unique name of this replica."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _observed: tuple[str, str] = ("", "")
    """Last observed holder and time of renewal."""
    _observed_since: float = field(default=float("-inf"))
    """Time when they were first observed."""

    def acquire(self) -> bool:
        """Acquire or renew the Lease. Returns True if this replica holds it now.

        Raises:
            KubeError: it can be neither read nor written.
        """
        lease = self.kube.get(Kind.LEASE, self.namespace, self.name)
        if lease is None:
            return self.kube.create(self._lease(transitions=0))
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity) and not self._has_expired(spec):
            return False
        # Kubernetes counts the changes of holder in leaseTransitions.
        moved = int(holder != self.identity)
        desired = self._lease(int(spec.get("leaseTransitions") or 0) + moved)
        version = {name: lease["metadata"][name] for name in ("uid", "resourceVersion")}
        try:
            metadata = {**desired["metadata"], **version}
            self.kube.apply({**desired, "metadata": metadata}, force=True)
        except Conflict:  # another replica was faster
            return False
        return True

    def release(self) -> None:
        """Give the Lease back, so that another replica can act at once.

        Raises:
            KubeError: it cannot be written; the others then wait until it expires.
        """
        lease = self.kube.get(Kind.LEASE, self.namespace, self.name)
        spec = (lease or {}).get("spec") or {}
        if lease is None or spec.get("holderIdentity") != self.identity:
            return
        free = self._lease(int(spec.get("leaseTransitions") or 0))
        metadata = {**free["metadata"], "resourceVersion": lease["metadata"]["resourceVersion"]}
        self.kube.apply(
            {**free, "metadata": metadata, "spec": {**free["spec"], "holderIdentity": ""}},
            force=True,
        )

    def _has_expired(self, spec: Mapping[str, Any]) -> bool:
        observed = (str(spec.get("holderIdentity")), str(spec.get("renewTime")))
        if observed != self._observed:
            self._observed, self._observed_since = observed, self.clock()
        seconds = spec.get("leaseDurationSeconds")
        return self.clock() - self._observed_since >= (
            seconds if isinstance(seconds, int) else LEASE_SECONDS
        )

    def _lease(self, transitions: int) -> dict[str, Any]:
        return {
            "apiVersion": Kind.LEASE.api_version,
            "kind": Kind.LEASE.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "leaseTransitions": transitions,
            },
        }


async def wait_to_lead(leadership: Leadership, stop: Stop) -> bool:
    """Wait until this replica holds the Lease. False: stop was set before."""
    is_waiting = False
    while not stop.is_set():
        try:
            if await asyncio.to_thread(leadership.acquire):
                log.info("holds the Lease %s", leadership.name)
                return True
            if not is_waiting:
                log.info("another replica holds the Lease %s: standing by", leadership.name)
            is_waiting = True
        except KubeError as error:
            log.warning("the Lease %s cannot be acquired: %s", leadership.name, error)
        await stop.pause(RENEW_SECONDS)
    return False


async def keep_leading(leadership: Leadership, stop: Stop) -> None:
    """Renew the Lease until stop is set.

    Raises:
        LeaseLost: another replica may hold it.
    """
    renewed = leadership.clock()
    while not stop.is_set():
        await stop.pause(RENEW_SECONDS)
        if stop.is_set():
            return
        # Others may count the duration from the request on, which precedes its answer.
        requested = leadership.clock()
        try:
            async with asyncio.timeout(max(0.1, renewed + GIVE_UP_SECONDS - requested)):
                if not await asyncio.to_thread(leadership.acquire):
                    raise LeaseLost(f"another replica has taken the Lease {leadership.name}")
            renewed = requested
        except TimeoutError:
            log.warning("the Lease %s could not be renewed in time", leadership.name)
        except KubeError as error:
            log.warning("the Lease %s cannot be renewed: %s", leadership.name, error)
        if leadership.clock() - renewed >= GIVE_UP_SECONDS:
            raise LeaseLost(f"the Lease {leadership.name} could not be renewed in time")
