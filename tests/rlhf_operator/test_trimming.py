"""The cache keeps of clusters and pods what decisions need, and not their templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.trimming import trimmed
from rlhf_operator.observe.parse import find_pods_refusal, parse_cluster, parse_pod

from .world import NAMESPACE, World, manifest

POOLS = [
    {"name": "one", "nodes": 2, "devicesPerNode": 4, "gpu": "A100-80G"},
    {"name": "two", "nodes": 1, "devicesPerNode": 4, "gpu": "A100-80G"},
]


def test_what_is_parsed_of_a_cluster_and_its_pods_is_the_same(world: World) -> None:
    world.run_to_training(manifest(resources={"nodePools": POOLS}))
    objects = world.kube.objects
    cluster = objects[Kind.CLUSTER, NAMESPACE, "sort-1"]
    small = trimmed(Kind.CLUSTER, cluster)
    parsed = parse_cluster(small, "sort", "uid", "key")
    assert parsed == parse_cluster(cluster, "sort", "uid", "key")
    assert parsed.manifest is not None and parsed.num_desired_workers == 3
    assert find_pods_refusal(small) == find_pods_refusal(cluster)
    assert len(json.dumps(small)) < len(json.dumps(cluster)) / 3
    pods = [each for (kind, *_), each in objects.items() if kind is Kind.POD]
    assert pods
    for pod in pods:
        full = {**pod, "spec": {**pod["spec"], "containers": [{"name": "ray"}]}}
        assert parse_pod(trimmed(Kind.POD, full)) == parse_pod(pod)
        assert "containers" not in trimmed(Kind.POD, full)["spec"]


def test_jobs_are_kept_whole() -> None:
    job = {"spec": {"template": {"spec": 1}}}
    assert trimmed(Kind.JOB, job) == job


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "text",
        {},
        {"headGroupSpec": "x", "workerGroupSpecs": {"a": 1}},
        {"headGroupSpec": {"template": 3}, "workerGroupSpecs": ["x", None]},
        {"headGroupSpec": {"template": {"spec": []}}},
        {"headGroupSpec": {}},
    ],
)
@pytest.mark.parametrize("kind", [Kind.CLUSTER, Kind.POD])
def test_odd_objects_are_passed_on_to_the_parser(kind: Kind, spec: Any) -> None:
    metadata = {"name": "sort-1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    odd = {"metadata": metadata, "spec": spec}
    if kind is Kind.POD:
        assert parse_pod(trimmed(kind, odd)) == parse_pod(odd)
    else:
        same = parse_cluster(odd, "sort", "uid", "key")
        assert parse_cluster(trimmed(kind, odd), "sort", "uid", "key") == same
