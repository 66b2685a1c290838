"""A manifest cannot carry settings of pods: they are refused or dropped, and reach no pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf_api.reading.overrides import apply_overrides
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.ray_cluster import ray_cluster
from rlhf_operator.config import JobDefaults
from rlhf_operator.observe.parse import parse_job

from ..cluster.devcluster import CommandFailed
from ..cluster.kubectl import Kubectl
from .cluster import small

pytestmark = pytest.mark.cluster
PLACEHOLDERS = ("spec", "spec.resources.head", "spec.resources.nodePools[0]")
SETTINGS = {
    "volumes": "[{name: x, hostPath: {path: /}}]",
    "securityContext": "{privileged: true}",
    "hostNetwork": "true",
    "serviceAccountName": "admin",
}
WORDS = ("hostPath", "privileged", "hostNetwork", "serviceAccountName", "admin")
"""None of these has a place in what the operator makes."""
EVERY = [(f"{place}.{field}", value) for place in PLACEHOLDERS for field, value in SETTINGS.items()]


def names(value: Any) -> Iterator[str]:
    """Every field of an object, at any depth."""
    if isinstance(value, dict):
        yield from value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from names(each)


@pytest.mark.parametrize(("field", "value"), EVERY, ids=[field for field, _ in EVERY])
def test_a_setting_of_a_pod_reaches_none(
    defined: Kubectl, namespace: str, field: str, value: str
) -> None:
    good = small("hostile", resources={**small("hostile")["spec"]["resources"], "head": {}})
    good["metadata"]["namespace"] = namespace
    hostile = apply_overrides(good, [f"{field}={value}"])
    with pytest.raises(CommandFailed) as refused:
        defined.apply(namespace, hostile)
    assert f'unknown field "{field}"' in str(refused.value)

    defined.send("apply", namespace, hostile, "--validate=ignore")
    stored = defined.get(namespace, "rlhfjob", "hostile")
    assert not SETTINGS.keys() & set(names(stored))
    observed = parse_job(stored, JobDefaults())
    assert observed.job is not None and observed.problem is None
    made = ray_cluster(
        Owner(namespace, "hostile", observed.uid), observed.job, 1, "manifest", "token", {}
    )
    assert not [word for word in WORDS if word in json.dumps(made)]

    # An API server that drops nothing: the operator itself refuses it (Accepted=False).
    kept = parse_job(apply_overrides(stored, [f"{field}={value}"]), JobDefaults())
    assert kept.job is None and kept.problem is not None and field in kept.problem.message
