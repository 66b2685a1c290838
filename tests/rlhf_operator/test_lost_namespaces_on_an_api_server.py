"""One of several namespaces is lost: the operator has no role there any more."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.status import ConditionType
from rlhf_operator.permissions import WATCHED

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import SECONDS, Team, a_team, small

pytestmark = pytest.mark.cluster
ACCOUNT = "operator"
RULES = [
    {"apiGroups": [each.group], "resources": [*each.resources], "verbs": [*each.verbs]}
    for each in WATCHED
]


def bind(kubectl: Kubectl, namespace: str, home: str) -> None:
    """Give the account of one namespace the operator's role in another, or the same."""
    metadata = {"name": ACCOUNT, "namespace": namespace}
    api = "rbac.authorization.k8s.io"
    kubectl.apply(
        namespace,
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": RULES},
    )
    kubectl.apply(
        namespace,
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": home}],
        },
    )


def kubeconfig_of(kubectl: Kubectl, namespace: str, file: Path) -> Path:
    """A way into the cluster as that account."""
    token = kubectl("create", "token", ACCOUNT, f"--namespace={namespace}").strip()
    config: dict[str, Any] = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    cluster = config["clusters"][0]["cluster"]
    if "certificate-authority" in cluster:  # it is beside the file that names it
        authority = kubectl.kubeconfig.parent / cluster["certificate-authority"]
        cluster["certificate-authority"] = str(authority)
    file.write_text(yaml.safe_dump(config))
    return file


def test_the_others_are_looked_after_and_it_too_when_it_is_back(
    defined: Kubectl, tmp_path: Path
) -> None:
    lost = f"lost-{uuid.uuid4().hex[:8]}"
    defined("create", "namespace", lost)
    with a_team(defined, tmp_path) as team:
        home = team.namespace
        defined("create", "serviceaccount", ACCOUNT, f"--namespace={home}")
        bind(defined, home, home)
        team.operator.stop()
        team.operator = replace(
            team.operator,
            kubeconfig=kubeconfig_of(defined, home, tmp_path / "kubeconfig"),
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
        there.wait_for_condition("found", ConditionType.ACCEPTED, "False", "ClaimNotFound")
        there.delete("rlhfjob", "found")
    defined("delete", "namespace", lost, "--wait=false")


def watched(team: Team, namespace: str) -> float:
    return team.operator.metric(
        f"rlhf_operator_namespace_watched{{namespace={json.dumps(namespace)}}}"
    )
