"""Which replica of a release acts: the one that holds its Lease.

As Kubernetes' own controllers do it, a holder is taken for gone when its Lease has not changed for
as long as it says, by the watcher's clock: the clocks of two nodes need not agree.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Conflict, Kube, KubeError
from rlhf_operator.process.stop import Stop

log = logging.getLogger(__name__)
LEASE_SECONDS = 15
"""After so long without a sign of life another replica takes over."""
RENEW_SECONDS = 5.0
"""From one sign of life to the next."""
GIVE_UP_SECONDS = 10.0
"""A holder that could not renew for so long must not act any more: another one may, soon."""


class LeaseLost(Exception):
    """Another replica may act now: this one ends, and is started again."""


@dataclass
class Leadership:
    """One replica's view of the Lease."""

    kube: Kube
    namespace: str
    name: str
    identity: str
    """This replica's, unlike every other's: its pod's name."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _seen: tuple[str, str] = ("", "")
    """Holder and time of renewal, as they were read last."""
    _since: float = field(default=float("-inf"))
    """When they were read first."""

    def acquire(self) -> bool:
        """Take the Lease, or renew it; whether this replica holds it now.

        Raises:
            KubeError: it can be neither read nor written.
        """
        found = self.kube.get(Kind.LEASE, self.namespace, self.name)
        if found is None:
            return self.kube.create(self._lease(transitions=0))
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity) and not self._has_expired(spec):
            return False
        moved = int(holder != self.identity)
        wanted = self._lease(int(spec.get("leaseTransitions") or 0) + moved)
        version = {name: found["metadata"][name] for name in ("uid", "resourceVersion")}
        try:
            self.kube.apply({**wanted, "metadata": {**wanted["metadata"], **version}})
        except Conflict:  # another one was faster
            return False
        return True

    def release(self) -> None:
        """Let another replica act at once.

        Raises:
            KubeError: it cannot be written; then the others wait for the Lease's time.
        """
        found = self.kube.get(Kind.LEASE, self.namespace, self.name)
        spec = (found or {}).get("spec") or {}
        if found is None or spec.get("holderIdentity") != self.identity:
            return
        free = self._lease(int(spec.get("leaseTransitions") or 0))
        metadata = {**free["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
        self.kube.apply(
            {**free, "metadata": metadata, "spec": {**free["spec"], "holderIdentity": ""}}
        )

    def _has_expired(self, spec: Mapping[str, Any]) -> bool:
        seen = (str(spec.get("holderIdentity")), str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._since = seen, self.clock()
        seconds = spec.get("leaseDurationSeconds")
        return self.clock() - self._since >= (
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
    """Wait until this replica holds the Lease. False: it was told to stop before."""
    waits = False
    while not stop.is_set():
        try:
            if await asyncio.to_thread(leadership.acquire):
                log.info("holds the Lease %s", leadership.name)
                return True
            if not waits:
                log.info("another replica holds the Lease %s: standing by", leadership.name)
            waits = True
        except KubeError as error:
            log.warning("the Lease %s cannot be taken: %s", leadership.name, error)
        await stop.pause(RENEW_SECONDS)
    return False


async def keep_leading(leadership: Leadership, stop: Stop) -> None:
    """Renew the Lease until told to stop.

    Raises:
        LeaseLost: another replica may hold it.
    """
    renewed = leadership.clock()
    while not stop.is_set():
        await stop.pause(RENEW_SECONDS)
        if stop.is_set():
            return
        asked = leadership.clock()
        try:
            async with asyncio.timeout(max(0.1, renewed + GIVE_UP_SECONDS - asked)):
                if not await asyncio.to_thread(leadership.acquire):
                    raise LeaseLost(f"another replica has taken the Lease {leadership.name}")
            renewed = asked
        except TimeoutError:
            log.warning("the Lease %s could not be renewed in time", leadership.name)
        except KubeError as error:
            log.warning("the Lease %s cannot be renewed: %s", leadership.name, error)
        if leadership.clock() - renewed >= GIVE_UP_SECONDS:
            raise LeaseLost(f"the Lease {leadership.name} could not be renewed in time")
