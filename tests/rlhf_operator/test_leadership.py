"""Which of several replicas acts, by a clock that the test moves."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlhf_kube.errors import Conflict, Forbidden, KubeError, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_operator.process.leadership import (
    GIVE_UP_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Leader,
    Leadership,
)

from ..rlhf_kube.fake_kube import FakeKube


@dataclass
class Replicas:
    """Some of them, on nodes whose clocks agree only about how fast time goes."""

    kube: FakeKube = field(default_factory=FakeKube)
    seconds: float = 1000.0

    def replica(self, name: str, clock_is_ahead: float = 0.0) -> Leadership:
        return Leadership(
            self.kube,
            "rlhf-system",
            "lease",
            name,
            clock=lambda: self.seconds + clock_is_ahead,
        )

    def leader(self, name: str) -> tuple[Leader, list[bool]]:
        """One without its thread, and the changes of its role."""
        changes: list[bool] = []
        leader = Leader(self.replica(name))
        leader._on_change = changes.append
        return leader, changes

    @property
    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.kube.objects[Kind.LEASE, "rlhf-system", "lease"]["spec"]
        return spec


def test_the_first_holds_it_and_the_second_takes_over_when_its_time_is_over() -> None:
    replicas = Replicas()
    first, second = replicas.replica("first"), replicas.replica("second", clock_is_ahead=5e6)
    assert first.acquire() and not second.acquire()
    for _ in range(10):
        replicas.seconds += RENEW_SECONDS
        assert first.acquire() and not second.acquire()
    replicas.seconds += LEASE_SECONDS - 0.1  # the first one has died
    assert not second.acquire()
    replicas.seconds += 0.2
    assert second.acquire() and replicas.lease["leaseTransitions"] == 1
    assert not first.acquire(), "it has come back too late"


def test_one_that_has_just_begun_to_look_does_not_take_a_lease_for_old() -> None:
    replicas = Replicas()
    assert replicas.replica("first").acquire()
    replicas.seconds += 100 * LEASE_SECONDS
    late = replicas.replica("late")
    assert not late.acquire()
    replicas.seconds += LEASE_SECONDS
    assert late.acquire()


def test_one_that_is_given_back_is_free_at_once() -> None:
    replicas = Replicas()
    first, second = replicas.replica("first"), replicas.replica("second")
    assert first.acquire() and not second.acquire()
    second.release()
    assert replicas.lease["holderIdentity"] == "first", "it is not its to give"
    first.release()
    assert second.acquire()


def test_a_lease_that_only_the_chart_has_made_is_free() -> None:
    replicas = Replicas()
    metadata = {"name": "lease", "namespace": "rlhf-system"}
    replicas.kube.create(
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    )
    assert replicas.replica("first").acquire()


def test_of_two_at_the_same_moment_one_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()
    first, second = replicas.replica("first"), replicas.replica("second")
    assert first.acquire()
    first.release()
    apply = replicas.kube.apply

    def overtaken(manifest: Any, **options: Any) -> Any:
        monkeypatch.setattr(replicas.kube, "apply", apply)
        assert first.acquire()
        return apply(manifest, **options)

    monkeypatch.setattr(replicas.kube, "apply", overtaken)
    assert not second.acquire()
    assert replicas.lease["holderIdentity"] == "first"


def test_an_earlier_process_of_the_same_pod_has_ended() -> None:
    replicas = Replicas()
    assert replicas.replica("pod-1-a").acquire()
    assert not replicas.replica("pod-10-b").acquire(), "another pod"
    restarted = replicas.replica("pod-1-c")
    assert not restarted.acquire(), "its pod is unknown"
    restarted.pod = "pod-1"
    assert restarted.acquire()
    assert replicas.lease["holderIdentity"] == "pod-1-c"


@pytest.mark.parametrize("error", [Unreachable("no answer"), Forbidden("403")])
def test_who_cannot_renew_does_not_act_until_it_can(error: KubeError) -> None:
    replicas = Replicas()
    leader, changes = replicas.leader("first")
    leader.try_once()
    assert leader.may_act() and changes == [True]
    replicas.kube.trouble = lambda verb, kind: error if verb == "apply" else None
    replicas.seconds += GIVE_UP_SECONDS - 0.1
    leader.try_once()
    assert leader.may_act()
    replicas.seconds += 0.2
    leader.try_once()
    assert not leader.may_act(), "before another one may begin"
    replicas.seconds += 100 * LEASE_SECONDS
    replicas.kube.trouble = lambda verb, kind: None
    leader.try_once()
    assert leader.may_act() and changes == [True], "nobody else was there"


def test_a_lease_that_somebody_else_has_written_may_be_lost() -> None:
    replicas = Replicas()
    leader, changes = replicas.leader("first")
    leader.try_once()
    replicas.kube.trouble = lambda verb, kind: Conflict("409") if verb == "apply" else None
    leader.try_once()
    assert not leader.may_act()
    replicas.kube.trouble = lambda verb, kind: None
    leader.try_once()
    assert leader.may_act() and changes == [True, False, True]


def test_who_loses_the_lease_competes_again() -> None:
    replicas = Replicas()
    (first, first_changes), (second, second_changes) = map(replicas.leader, ("first", "second"))
    first.try_once()
    second.try_once()
    replicas.seconds += LEASE_SECONDS
    second.try_once()
    assert second.may_act() and not first.may_act()
    first.try_once()
    assert (first_changes, second_changes) == ([True, False], [False, True])
    second.close()
    first.try_once()
    assert first.may_act() and first_changes == [True, False, True]
    assert not second.may_act()


def test_who_is_late_does_not_act_while_its_request_takes_long() -> None:
    replicas = Replicas()
    leader, _ = replicas.leader("first")
    leader.try_once()

    def slow(verb: str, kind: Kind) -> None:
        if verb == "apply":
            replicas.seconds += GIVE_UP_SECONDS + 1
            assert not leader.may_act()

    replicas.kube.trouble = slow
    leader.try_once()
    assert not leader.may_act(), "the duration counts from the request on"


def test_a_replica_renews_until_it_is_closed() -> None:
    kube = FakeKube()
    renewals = threading.Semaphore(0)

    def count(verb: str, kind: Kind) -> None:
        renewals.release()

    kube.trouble = count
    leader = Leader(Leadership(kube, "rlhf-system", "lease", "first"))
    changes: list[bool] = []
    leader.start(changes.append)
    assert renewals.acquire(timeout=10)
    leader.close()
    assert changes == [True]
    assert kube.objects[Kind.LEASE, "rlhf-system", "lease"]["spec"]["holderIdentity"] == ""
