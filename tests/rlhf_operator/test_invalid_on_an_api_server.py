"""Manifests that cannot be run: refused by the API server, or told in the status."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind

from ..cluster.devcluster import CommandFailed
from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster
STORAGE = {"persistentVolumeClaim": {"claimName": "missing"}}
SHAPE = {
    "hiddenSize": 8192,
    "layers": 80,
    "heads": 64,
    "keyValueHeads": 8,
    "headSize": 128,
    "intermediateSize": 28672,
    "vocabularySize": 128256,
}
ACCEPTED_BY_THE_DEFINITION: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-claim": ({"checkpoint": {"storage": STORAGE}}, "ClaimNotFound", "missing"),
    "no-storage": ({"checkpoint": {}}, "NoCheckpointStorage", "jobDefaults.storage"),
    "no-image": ({"image": None}, "NoImage", "jobDefaults.image"),
    "no-pools": ({"resources": {}}, "NoNodePools", "nodePools"),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "negative": ({"schedule": {"steps": -5, "promptsPerStep": 4}}, "steps"),
    "huge": ({"priorityClassName": "x" * 100_000}, "priorityClassName"),
    "unicode": ({"priorityClassName": "\u202eп\u0000"}, "priorityClassName"),
    "unknown": ({"shedule": {"steps": 1}}, "shedule"),
    "wrong-type": ({"suspend": "perhaps"}, "suspend"),
}


@pytest.mark.parametrize("name", list(ACCEPTED_BY_THE_DEFINITION))
def test_what_cannot_be_run_here_is_told_and_nothing_is_made(team: Team, name: str) -> None:
    spec, reason, says = ACCEPTED_BY_THE_DEFINITION[name]
    team.submit(small(name, **spec))
    team.wait_for_condition(name, ConditionType.ACCEPTED, "False", reason)
    status = team.status(name)
    assert says in status.message and status.phase == "Pending"
    assert team.condition(name, ConditionType.STALLED) == ("True", reason)
    wait_until(lambda: reason in team.events(name), SECONDS, "an event")
    assert team.left(name) == []
    assert team.operator.metric('rlhf_operator_reconcile_errors_total{reason="Bug"}') == 0
    team.delete("rlhfjob", name)


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_hostile_is_refused_at_once(team: Team, name: str) -> None:
    spec, says = REFUSED[name]
    with pytest.raises(CommandFailed, match=says):
        team.submit(small(name, **spec))
    assert team.kube.get(Kind.JOB, team.namespace, name) is None


def test_a_missing_claim_that_is_made_lets_the_job_begin(team: Team) -> None:
    team.submit(
        small("late", checkpoint={"storage": {"persistentVolumeClaim": {"claimName": "late"}}})
    )
    team.wait_for_condition("late", ConditionType.ACCEPTED, "False", "ClaimNotFound")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "late"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": f"shared-{team.namespace}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    team.kubectl.apply(team.namespace, claim)
    # Claims are not watched: the next reconcile comes by itself, or when the job is touched.
    place = (f"--namespace={team.namespace}", "rlhfjob", "late")
    team.kubectl("annotate", *place, "example.com/again=please")
    team.wait_for_condition("late", ConditionType.ACCEPTED, "True", "Accepted")
    team.delete("rlhfjob", "late")
