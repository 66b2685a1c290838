"""Two replicas of one release, which share a Lease."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator.process.leadership import LEASE_SECONDS, RENEW_SECONDS

from ..cluster.kubectl import Kubectl
from ..free_port import free_port
from ..waiting import wait_until
from .cluster import SECONDS, Team, a_team
from .operator_process import OperatorProcess

pytestmark = pytest.mark.cluster
TAKES_OVER_SECONDS = LEASE_SECONDS + 2 * RENEW_SECONDS + 15.0
"""With what a busy machine adds."""


@pytest.fixture
def system(defined: Kubectl) -> Iterator[str]:
    """The operator's own namespace."""
    name = f"system-{uuid.uuid4().hex[:8]}"
    defined("create", "namespace", name)
    yield name
    defined("delete", "namespace", name, "--wait=false")


def test_the_second_acts_when_the_first_is_gone(
    defined: Kubectl, system: str, tmp_path: Path
) -> None:
    with a_team(defined, tmp_path) as team:
        team.operator.stop()
        settings = {**team.operator.settings, "operatorNamespace": system}
        team.operator = replace(team.operator, settings=settings, process=None, has_key_file=False)
        team.operator.start()
        second = replace(team.operator, folder=tmp_path / "second", port=free_port(), process=None)
        second.start()
        first_holder = holder(team, system)
        assert first_holder, "the first one acts"
        head = team.train("shared")
        assert "standing by" in second.log.read_text()
        assert second.metric("rlhf_operator_reconcile_seconds_count") == 0

        team.operator.kill()
        wait_until(
            lambda: holder(team, system) not in ("", first_holder), TAKES_OVER_SECONDS, "a takeover"
        )
        head.finish()
        team.wait_for("Succeeded", "shared")
        assert head.submitted == ["shared-1-0"]

        hand_over(team, second, system)


def hand_over(team: Team, second: OperatorProcess, system: str) -> None:
    """One that is told to end gives the Lease back: the next one need not wait."""
    assert second.stop(signal.SIGTERM) == 0
    assert holder(team, system) == ""
    team.operator.process = None
    team.operator.start()
    wait_until(lambda: bool(holder(team, system)), SECONDS, "a holder")


def holder(team: Team, namespace: str) -> str:
    found: Manifest | None = team.kube.get(Kind.LEASE, namespace, "rlhf-operator")
    return str(((found or {}).get("spec") or {}).get("holderIdentity", ""))
