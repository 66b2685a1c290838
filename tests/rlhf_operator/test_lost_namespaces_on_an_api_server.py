"""One of several namespaces is lost: the operator has no role there, or not any more."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .accounts import bind, make_account, unbind
from .cluster import SECONDS, Team, a_team, delete_namespace, shared_claim, small

pytestmark = pytest.mark.cluster
IMPATIENT = {"rlhf_operator.process.app:MAX_RETRY_SECONDS": 2.0}
"""It soon tries again to watch what is lost."""


def test_the_others_are_watched_and_it_too_when_it_is_back_until_it_is_deleted(
    defined: Kubectl, tmp_path: Path
) -> None:
    lost = f"lost-{uuid.uuid4().hex[:8]}"
    defined("create", "namespace", lost)
    for made in shared_claim(lost):
        defined.apply(lost, made)
    with a_team(defined, tmp_path, constants=IMPATIENT) as team:
        home = team.namespace
        team.operator.stop()
        team.operator = replace(
            team.operator,
            kubeconfig=make_account(defined, home, tmp_path / "kubeconfig"),
            settings={**team.operator.settings, "namespaces": [lost, home]},
            process=None,
        )
        team.operator.start()
        team.train("fine").finish()
        team.wait_for("Succeeded", "fine")
        assert watched(team, lost) == 0 and watched(team, home) == 1
        assert f"{lost} cannot be watched" in team.operator.log.read_text()

        there = replace(team, namespace=lost)
        there.submit(small("found"))
        bind(defined, lost, home)
        wait_until(lambda: watched(team, lost) == 1, SECONDS, "a watch of what was lost")
        there.wait_for_driver("found-1-0")
        # As in a namespace that is deleted with the operator in it: no operator may do anything.
        unbind(defined, lost)
        delete_namespace(defined, lost)
    defined("delete", "persistentvolume", f"shared-{lost}", "--wait=false")


def watched(team: Team, namespace: str) -> float:
    return team.operator.metric(
        f"rlhf_operator_namespace_watched{{namespace={json.dumps(namespace)}}}"
    )
