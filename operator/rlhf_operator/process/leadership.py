"""Leader election: the replica that holds the release's Lease acts.

As in Kubernetes' own controllers, a holder counts as dead when its Lease has not changed for the
Lease's duration by the observer's clock: the clocks of two nodes need not agree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf_kube.errors import Conflict, KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube

log = logging.getLogger(__name__)
LEASE_SECONDS = 15
"""Duration without renewal after which another replica takes over."""
RENEW_SECONDS = 5.0
"""Between two renewals, and between two tries to acquire the Lease."""
GIVE_UP_SECONDS = 10.0
"""A holder that cannot renew for this long does not act: another replica may soon take over."""

LEASE_ANSWER_SECONDS = 5.0
"""Time limit for an answer to a request about the Lease."""


class NotLeading(Exception):
    """Another replica may act: this one does nothing."""


@dataclass
class Leadership:
    """One replica's view of the Lease."""

    kube: Kube
    namespace: str
    name: str
    identity: str
    """Unique name of this replica's process."""
    pod: str = ""
    """Begin of the identities of all processes in this pod. Empty: unknown."""
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
        if not self._is_own(holder) and not self._has_expired(spec):
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

    def _is_own(self, holder: str) -> bool:
        # An earlier process in this pod has ended: its container runs once at a time.
        return holder in ("", self.identity) or bool(self.pod) and holder.startswith(f"{self.pod}-")

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


class Leader:
    """Competes for the Lease until it is closed, in a thread of its own.

    A Lease that is lost ends nothing: the replica does not act until it holds the Lease again.
    """

    # The thread has its own connection, too: a renewal waits for nothing else in this process but
    # its turn at the interpreter.

    def __init__(self, lease: Leadership) -> None:
        self._lease = lease
        self._on_change: Callable[[bool], None] = lambda leads: None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._compete, name="lease", daemon=True)
        # Time of the request of the last renewal. None: another replica may hold the Lease.
        self._renewed: float | None = None
        # Result of the last request. None: there was none.
        self._was_held: bool | None = None
        self._is_late = False

    def start(self, on_change: Callable[[bool], None]) -> None:
        """Start to compete.

        on_change: called in the thread at first and at every change, with True if this replica
            holds the Lease, with False if another one does.
        """
        self._on_change = on_change
        self._thread.start()

    def may_act(self) -> bool:
        """True if no other replica can hold the Lease now."""
        renewed = self._renewed
        return renewed is not None and self._lease.clock() - renewed < GIVE_UP_SECONDS

    def close(self) -> None:
        """Stop, and give the Lease back.

        Raises:
            KubeError: it cannot be given back; the others wait until it expires.
        """
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._renewed is not None:
            self._renewed = None
            self._lease.release()

    def _compete(self) -> None:
        while not self._closing.is_set():
            self.try_once()
            self._closing.wait(RENEW_SECONDS if self._renewed is None or self.may_act() else 1.0)

    def try_once(self) -> None:
        """Acquire or renew the Lease once; log what has changed."""
        self._note_lateness()  # the process may have stood still
        # Others may count the duration from the request on, which precedes its answer.
        requested = self._lease.clock()
        try:
            is_held = self._lease.acquire()
        except KubeError as error:
            log.warning("the Lease %s cannot be acquired or renewed: %s", self._lease.name, error)
            self._note_lateness()
            return
        except Exception:  # the thread must not end: without it nobody acts
            log.exception("the Lease %s cannot be acquired or renewed", self._lease.name)
            return
        self._renewed = requested if is_held else None
        if is_held != self._was_held:
            self._was_held = is_held
            self._is_late = False
            if is_held:
                log.info("holds the Lease %s", self._lease.name)
            else:
                log.info("another replica holds the Lease %s: standing by", self._lease.name)
            self._on_change(is_held)
        self._note_lateness()

    def _note_lateness(self) -> None:
        is_late = self._renewed is not None and not self.may_act()
        if is_late and not self._is_late:
            log.warning(
                "the Lease %s was not renewed in time: nothing is done until it is",
                self._lease.name,
                extra={"reason": "LeaseLate"},
            )
        if self._is_late and not is_late:
            log.info("the Lease %s is renewed: reconciling goes on", self._lease.name)
        self._is_late = is_late
