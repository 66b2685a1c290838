"""Pods that a job shapes, on a real API server: stored, checked, scheduled on a fake node."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.spec.job import RLHFJob
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.ray_cluster import ray_cluster
from rlhf_operator.config import JobDefaults, OperatorConfig, PodPolicy
from rlhf_operator.observe.defaults import apply_defaults, select_defaults
from rlhf_operator.observe.parse import parse_job

from ..rlhf_api.pod_cases import EVERYTHING, REFUSED
from ..rlhf_api.rule_cases import GOOD
from .kubectl import Kubectl
from .session import new_namespace

pytestmark = pytest.mark.cluster

GUIDE = Path(__file__).parents[2] / "docs" / "kubernetes" / "pods.md"
BLOCKS: list[str] = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
EXAMPLES = [block for block in BLOCKS if not block.startswith("# values")]
VALUES = [yaml.safe_load(block) for block in BLOCKS if block.startswith("# values")]
ALLOWED = PodPolicy.model_validate(VALUES[0]["podPolicy"])
NEEDED: list[dict[str, Any]] = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 10,
    },
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    },
]
"""Objects of the whole cluster that pods of tests name."""


@pytest.fixture(scope="module")
def restricted(defined: Kubectl) -> Iterator[tuple[Kubectl, str]]:
    """A namespace under the restricted profile, with all objects that pods of tests name."""
    with new_namespace(defined) as namespace:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}}
        for each in (*NEEDED, account):
            defined.apply(namespace, each)
        level = "pod-security.kubernetes.io/enforce=restricted"
        defined("label", "namespace", namespace, level)
        yield defined, namespace
        for each in NEEDED:
            defined("delete", each["kind"].lower(), each["metadata"]["name"])


def manifest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The good manifest with further fields, an image and a claim."""
    document = deepcopy(GOOD)
    document["metadata"]["name"] = f"job-{uuid.uuid4().hex[:8]}"
    document["spec"] |= deepcopy(dict(spec)) | {
        "image": {"runtime": "localhost/none:1"},
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
    }
    document["spec"]["resources"].setdefault("nodePools", [{"name": "gpus", "devicesPerNode": 4}])
    return document


def pods(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The head's pod and one of each pool, as KubeRay makes them of the templates."""
    spec = cluster(document, "team")["spec"]
    made = []
    for number, group in enumerate((spec["headGroupSpec"], *spec["workerGroupSpecs"])):
        template = deepcopy(group["template"])
        name = f"{document['metadata']['name']}-{number}"
        template["metadata"] |= {"name": name}
        made.append({"apiVersion": "v1", "kind": "Pod", **template})
    return made


def cluster(document: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    written = RLHFJob.model_validate(document)
    job = apply_defaults(written, select_defaults(written, None, JobDefaults()))
    made = ray_cluster(Owner(namespace, job.name, "0" * 8), job, 1, "job", "token", {})
    return deepcopy(dict(made))


def create(kubectl: Kubectl, namespace: str, objects: list[dict[str, Any]], *flags: str) -> None:
    """Create objects; an error if the API server refuses one of them."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    strict = ("--validate=strict", f"--namespace={namespace}", "--filename=-")
    kubectl("create", *strict, *flags, stdin=text)


def test_pods_with_every_field_are_taken_under_the_restricted_profile(
    restricted: tuple[Kubectl, str],
) -> None:
    create(*restricted, pods(manifest({"resources": {"pod": EVERYTHING}})), "--dry-run=server")


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_guide_is_taken(restricted: tuple[Kubectl, str], example: str) -> None:
    kubectl, namespace = restricted
    document = manifest(yaml.safe_load(example))
    kubectl.apply(namespace, document)
    stored = kubectl.get(namespace, "rlhfjob", document["metadata"]["name"])
    seen = parse_job(stored, JobDefaults(), ALLOWED)
    assert seen.problem is None and seen.job is not None
    # Folders of nodes are of no restricted namespace, as the guide says.
    where = "default" if "hostPath" in example else namespace
    create(kubectl, where, pods(document), "--dry-run=server")


@pytest.mark.parametrize("values", VALUES, ids=lambda values: next(iter(values)))
def test_values_of_the_guide_are_those_of_the_operator(values: dict[str, Any]) -> None:
    config = OperatorConfig.model_validate(values)
    assert config.pod_policy != PodPolicy() or config.job_defaults != JobDefaults()


def test_templates_are_stored_as_they_are(restricted: tuple[Kubectl, str]) -> None:
    kubectl, namespace = restricted
    pool = {"name": "gpus", "pod": EVERYTHING}
    written = {"pod": EVERYTHING, "headPod": {"labels": {"a": "b"}}, "nodePools": [pool]}
    document = manifest({"resources": written})
    kubectl.apply(namespace, document)
    stored = kubectl.get(namespace, "rlhfjob", document["metadata"]["name"])["spec"]["resources"]
    assert (stored["pod"], stored["headPod"]) == (EVERYTHING, written["headPod"])
    assert stored["nodePools"][0]["pod"] == EVERYTHING


@pytest.mark.parametrize("name", ["a command", "a mount over the run's folder", "root"])
def test_the_operator_says_why_it_refuses_a_template(
    restricted: tuple[Kubectl, str], name: str
) -> None:
    kubectl, namespace = restricted
    case = REFUSED[name]
    document = apply_overrides(manifest({"resources": {}}), case.changes)
    kubectl.apply(namespace, document)  # the definition has no types for it
    stored = kubectl.get(namespace, "rlhfjob", document["metadata"]["name"])
    problem = parse_job(stored, JobDefaults()).problem
    assert problem is not None and problem.reason == "InvalidManifest"
    assert case.field in problem.message and case.says in problem.message


def node(name: str) -> dict[str, Any]:
    """A fake node with a taint, network cards, slices of a GPU and huge pages."""
    amounts = {
        **{"cpu": "96", "memory": "1Ti", "pods": "110", "ephemeral-storage": "1Ti"},
        **{"rdma/hca": "8", "nvidia.com/mig-3g.40gb": "8", "hugepages-2Mi": "8Gi"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "example.com/reserved": name},
        },
        "spec": {"taints": [{"key": "reserved", "value": name, "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def bare_pod(name: str) -> dict[str, Any]:
    """A pod for the fake node that tolerates nothing."""
    spec = {
        "nodeSelector": {"example.com/reserved": name},
        "containers": [{"name": "main", "image": "localhost/none:1"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": spec}


def claim(namespace: str) -> list[dict[str, Any]]:
    """A claim `datasets` and its volume."""
    access = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": access
            | {
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": namespace, "name": "datasets"},
                "hostPath": {"path": "/nonexistent"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "datasets", "namespace": namespace},
            "spec": access
            | {"volumeName": namespace, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


def test_a_cluster_whose_nodes_are_all_tainted_runs_head_and_workers(
    defined: Kubectl, namespace: str
) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    expression = {"key": "example.com/reserved", "operator": "In", "values": [namespace]}
    pod = {
        "tolerations": [{"key": "reserved", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        },
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "datasets", "readOnly": True}}
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    devices = {
        **{"name": "slices", "devicesPerNode": 4, "deviceResource": "nvidia.com/mig-3g.40gb"},
        "pod": {"resources": {"limits": {"rdma/hca": 1, "hugepages-2Mi": "1Gi", "cpu": 8}}},
    }
    document = manifest({"resources": {"pod": pod, "nodePools": [devices]}})
    del document["spec"]["checkpoint"]
    made = cluster(document, namespace)
    # Kubernetes would delete an object whose owner does not exist.
    del made["metadata"]["ownerReferences"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}}
    defined("create", "--filename=-", stdin=json.dumps(node(namespace)))
    try:
        # The node takes no pod without the toleration.
        defined.apply(namespace, bare_pod(namespace))
        defined.wait(namespace, "jsonpath={.status.conditions[0].reason}=Unschedulable", "pod/bare")
        (condition,) = defined.get(namespace, "pod/bare")["status"]["conditions"]
        assert "untolerated taint" in condition["message"]
        defined("delete", f"--namespace={namespace}", "pod/bare", "--grace-period=0")
        volume, datasets = claim(namespace)
        for each in (volume, datasets, secret | {"stringData": {"auth_token": "t"}}, made):
            defined("create", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(each))
        name = made["metadata"]["name"]
        defined.wait(namespace, "jsonpath={.status.state}=ready", f"raycluster/{name}")
        found = defined.get(namespace, "pods")["items"]
        assert [each["spec"]["nodeName"] for each in found] == [namespace] * 2
        (worker,) = (each for each in found if "-slices-" in each["metadata"]["name"])
        limits = worker["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/mig-3g.40gb"] == "4" and limits["rdma/hca"] == "1"
        for each in found:
            mounts = each["spec"]["containers"][0]["volumeMounts"]
            assert {"name": "data", "mountPath": "/data", "readOnly": True} in mounts
    finally:
        for kind in (f"raycluster/{made['metadata']['name']}", "persistentvolumeclaim/datasets"):
            flags = ("--ignore-not-found", f"--namespace={namespace}", "--wait=false")
            defined("delete", kind, *flags)
        defined("delete", f"persistentvolume/{namespace}", f"node/{namespace}", "--wait=false")
