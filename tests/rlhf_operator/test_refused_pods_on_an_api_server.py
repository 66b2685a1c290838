"""Pods that a real API server does not take: KubeRay says so, and so does the job."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.status import ConditionType

from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster
POOL = {"name": "gpu", "nodes": 1, "devicesPerNode": 1, "gpu": "A100-80G"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no-such-class": ({"priorityClassName": "no-such"}, "no PriorityClass with name no-such"),
    "no-image": ({"image": {"runtime": " runtime:1"}}, "leading or trailing whitespace"),
    "no-label": (
        {"resources": {"nodePools": [{**POOL, "nodeSelector": {"two words": "x"}}]}},
        "two words",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_no_pod_may_have_is_told(team: Team, name: str) -> None:
    spec, says = REFUSED[name]
    team.submit(small(name, **spec))
    team.wait_for_condition(name, ConditionType.CLUSTER_READY, "False", "PodsRefused")
    status = team.status(name)
    assert says in status.message and status.reason == "PodsRefused"
    assert ConditionType.STALLED in {condition.type for condition in status.conditions}
    wait_until(lambda: "PodsRefused" in team.events(name), SECONDS, "an event")
    team.delete("rlhfjob", name)
    wait_until(lambda: not team.left(name), SECONDS, "nothing of it")
