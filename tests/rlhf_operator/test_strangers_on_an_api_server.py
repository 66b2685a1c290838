"""Somebody else's objects by the names that a job needs, at a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.on_cluster import FIELD_MANAGER
from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest

from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster
CONTAINER = {"name": "ray", "image": "stranger:1"}
CONTENT: dict[Kind, dict[str, Any]] = {
    Kind.CONFIG_MAP: {"data": {"theirs": "1"}},
    Kind.POLICY: {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}},
    Kind.SECRET: {"data": {"theirs": "MQ=="}},
    Kind.CLUSTER: {
        "spec": {
            "suspend": True,
            "headGroupSpec": {
                "rayStartParams": {},
                "template": {"spec": {"containers": [CONTAINER]}},
            },
        }
    },
}


def make(team: Team, kind: Kind, name: str) -> Manifest:
    """Somebody makes an object of that name."""
    document = {**kind.header, "metadata": {"name": name}, **CONTENT[kind]}
    team.kubectl.send("create", team.namespace, document)
    return read(team, kind, name)


def read(team: Team, kind: Kind, name: str) -> Manifest:
    found = team.kube.get(kind, team.namespace, name)
    assert found is not None, f"no {kind.kind} {name}"
    return found


def is_untouched(made: Manifest, now: Manifest) -> bool:
    """Whether the operator changed nothing about it; KubeRay may tell its own status."""
    managers = {each["manager"] for each in now["metadata"]["managedFields"]}
    names = ("uid", "labels", "ownerReferences", "deletionTimestamp")
    alike = all(made["metadata"].get(name) == now["metadata"].get(name) for name in names)
    content = all(made.get(name) == now.get(name) for name in ("data", "spec"))
    return alike and content and FIELD_MANAGER not in managers


def waiting(team: Team, name: str) -> str:
    """A job that holds nothing yet; the name that its objects are going to have."""
    team.submit(small(name, suspend=True))
    team.wait_for("Suspended", name)
    return f"{name}-{team.job(name)['metadata']['uid'][:8]}"


def delete(team: Team, name: str) -> None:
    team.delete("rlhfjob", name)
    wait_until(lambda: team.kube.get(Kind.JOB, team.namespace, name) is None, SECONDS, "no job")


def test_another_ones_cluster_is_neither_used_nor_deleted(team: Team) -> None:
    made = make(team, Kind.CLUSTER, "crowded-1")
    team.submit(small("crowded"))
    team.wait_for_condition("crowded", ConditionType.STALLED, "True", "NameTaken")
    assert "RayCluster named crowded-1" in team.status("crowded").message
    assert team.left("crowded") == []
    delete(team, "crowded")
    assert is_untouched(made, read(team, Kind.CLUSTER, "crowded-1"))
    team.delete("raycluster", "crowded-1")


def test_another_ones_secret_is_left_as_it_is(team: Team) -> None:
    """Nobody may read it, so the operator does not know whose it is: a real head refuses then."""
    name = waiting(team, "secretive")
    made = make(team, Kind.SECRET, name)
    team.edit("secretive", suspend=False)
    team.wait_for_driver("secretive-1-0")
    delete(team, "secretive")
    wait_until(lambda: team.left("secretive") == [], SECONDS, "nothing left")
    assert is_untouched(made, read(team, Kind.SECRET, name))
    team.delete("secret", name)
