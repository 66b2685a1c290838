"""Two replicas of one release, which share a Lease."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest

from ..cluster.kubectl import Kubectl
from ..free_port import free_port
from ..waiting import wait_until
from .cluster import SECONDS, Team, a_team

pytestmark = pytest.mark.cluster
LEASE_SECONDS = 8
GIVE_UP_SECONDS = 5.0
QUICK = {
    "rlhf_operator.process.leadership:LEASE_SECONDS": LEASE_SECONDS,
    "rlhf_operator.process.leadership:RENEW_SECONDS": 2.0,
    "rlhf_operator.process.leadership:GIVE_UP_SECONDS": GIVE_UP_SECONDS,
}
"""About half of what is usual; still longer than a busy machine keeps a process waiting."""
TAKES_OVER_SECONDS = LEASE_SECONDS + 30.0
"""With what a busy machine adds."""


@pytest.fixture
def system(defined: Kubectl) -> Iterator[str]:
    """The operator's own namespace."""
    name = f"system-{uuid.uuid4().hex[:8]}"
    defined("create", "namespace", name)
    yield name
    defined("delete", "namespace", name, "--wait=false")


def test_replicas_act_in_turns(defined: Kubectl, system: str, tmp_path: Path) -> None:
    with a_team(defined, tmp_path, constants=QUICK) as team:
        team.operator.stop()
        settings = {**team.operator.settings, "operatorNamespace": system}
        team.operator = replace(team.operator, settings=settings, process=None, has_key_file=False)
        team.operator.start()
        first_holder = next_holder(team, system, "")
        second = replace(team.operator, folder=tmp_path / "second", port=free_port(), process=None)
        second.start()
        head = team.train("shared")
        wait_until(lambda: "standing by" in second.log.read_text(), SECONDS, "a second look")
        assert second.metric("rlhf_operator_reconcile_seconds_count") == 0

        # The first one stands still, and comes back when the second has taken over.
        first = team.operator.process
        assert first is not None
        first.send_signal(signal.SIGSTOP)
        next_holder(team, system, first_holder)
        first.send_signal(signal.SIGCONT)
        wait_until(
            lambda: "another replica holds" in team.operator.log.read_text(), SECONDS, "its rest"
        )
        head.finish()
        team.wait_for("Succeeded", "shared")
        assert head.submitted == ["shared-1-0"]
        assert "all steps are done" not in team.operator.log.read_text(), "the second has seen it"

        # One that is told to end gives the Lease back: the next one need not wait.
        assert second.stop(signal.SIGTERM) == 0
        wait_until(lambda: holder(team, system) == first_holder, SECONDS, "the first one's return")
        team.train("next").finish()
        team.wait_for("Succeeded", "next")
        assert first.poll() is None


def test_a_lone_operator_survives_a_lease_that_it_cannot_renew(
    defined: Kubectl, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a node that gives it no time; later its container is started again.
    monkeypatch.setenv("POD_UID", uuid.uuid4().hex)
    with a_team(defined, tmp_path, constants=QUICK) as team:
        team.operator.stop()
        settings = {**team.operator.settings, "operatorNamespace": system}
        team.operator = replace(team.operator, settings=settings, process=None, has_key_file=False)
        team.operator.start()
        first_holder = next_holder(team, system, "")
        head = team.train("lonely")
        process = team.operator.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        renewed = renewal(team, system)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(GIVE_UP_SECONDS + 1)
        head.finish()
        process.send_signal(signal.SIGCONT)
        team.wait_for("Succeeded", "lonely")
        assert holder(team, system) == first_holder and renewal(team, system) != renewed
        assert process.poll() is None
        assert "was not renewed in time" in team.operator.log.read_text()

        team.operator.kill()
        team.operator.start()
        next_holder(team, system, first_holder)
        assert "standing by" not in team.operator.log.read_text(), "that one was of the same pod"


def next_holder(team: Team, namespace: str, last: str) -> str:
    """Wait until another process than the last one holds the Lease. Returns its name."""
    wait_until(
        lambda: holder(team, namespace) not in ("", last), TAKES_OVER_SECONDS, "another holder"
    )
    return holder(team, namespace)


def renewal(team: Team, namespace: str) -> str:
    found: Manifest | None = team.kube.get(Kind.LEASE, namespace, "rlhf-operator")
    return str(((found or {}).get("spec") or {}).get("renewTime", ""))


def holder(team: Team, namespace: str) -> str:
    found: Manifest | None = team.kube.get(Kind.LEASE, namespace, "rlhf-operator")
    return str(((found or {}).get("spec") or {}).get("holderIdentity", ""))
