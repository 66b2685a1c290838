"""Which of several replicas acts, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlhf_kube.errors import Conflict, KubeError, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_operator.process.leadership import (
    GIVE_UP_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Leadership,
    LeaseLost,
    keep_leading,
)
from rlhf_operator.process.stop import Stop

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


@pytest.mark.parametrize("error", [Unreachable("no answer"), Conflict("409")])
def test_who_cannot_renew_stops_before_another_may_begin(
    error: KubeError,
) -> None:
    replicas = Replicas()
    first = replicas.replica("first")
    assert first.acquire()
    replicas.kube.trouble = lambda verb, kind: error if verb == "apply" else None
    waits: list[float] = []

    class Never(Stop):
        async def pause(self, seconds: float) -> None:
            waits.append(seconds)
            replicas.seconds += seconds

    with pytest.raises(LeaseLost):
        asyncio.run(keep_leading(first, Never()))
    assert sum(waits) <= GIVE_UP_SECONDS < LEASE_SECONDS
