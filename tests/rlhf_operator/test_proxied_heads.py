"""Who reaches a job's pods where its head is reached through the API server."""

from __future__ import annotations

import pytest

from rlhf_api.on_cluster import AGENT_PORT, DASHBOARD_PORT, GCS_PORT, REPORT_PORT
from rlhf_operator.apply.build.owned_objects import network_policy
from rlhf_operator.apply.build.owner import Owner

from ..network_policies import End, Outside, Pod, admitted

OWNER = Owner("team", "sort", "12345678-aaaa")
HEAD = Pod("team", OWNER.labels)
API_SERVER, STRANGER = Outside("10.0.0.1"), Pod("team", {"app": "notebook"})


@pytest.mark.parametrize("source", [API_SERVER, STRANGER])
@pytest.mark.parametrize(
    ("port", "admits"),
    [(DASHBOARD_PORT, True), (REPORT_PORT, True), (GCS_PORT, False), (AGENT_PORT, False)],
)
@pytest.mark.parametrize("namespace", ["rlhf-system", None])
def test_everybody_reaches_what_asks_for_a_token_and_nothing_else(
    source: End, port: int, admits: bool, namespace: str | None
) -> None:
    proxied = network_policy(OWNER, namespace, from_anywhere=True)
    assert admitted([proxied], source, HEAD, port) is admits
    assert admitted([network_policy(OWNER, namespace)], source, HEAD, port) is False


def test_the_jobs_own_pods_reach_each_other() -> None:
    proxied = network_policy(OWNER, "rlhf-system", from_anywhere=True)
    assert admitted([proxied], HEAD, HEAD, GCS_PORT)
