"""A pretended world around the real reconciler: KubeRay, pods, heads and a clock that tests move.

Kubernetes is `FakeKube`, heads are `FakeHeads`; both are held to the real ones by contract tests.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import filterfalse
from typing import Any

import yaml

from rlhf_api.reading.status import read_status
from rlhf_api.status import ConditionType, RLHFJobStatus
from rlhf_kube.errors import KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator.apply.performer import Performer
from rlhf_operator.clients.cached_kube import WATCHED, CachedKube, Key, job_key
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHeads
from rlhf_operator.config import JobDefaults
from rlhf_operator.decide.observed import PlanResult
from rlhf_operator.decide.pod_messages import named_problem
from rlhf_operator.decide.settings import Settings
from rlhf_operator.identity import Identity
from rlhf_operator.observe.observer import Observer
from rlhf_operator.observe.parse import parse_pod
from rlhf_operator.observe.planner import Planner
from rlhf_operator.observe.ray_heads import RayHeads
from rlhf_operator.process.metrics import Metrics
from rlhf_operator.process.reconciler import Reconciler

from ..rlhf_kube.fake_kube import FakeKube
from .awaited import now
from .fake_head import FakeHead, FakeHeads

NAMESPACE = "team"
START = datetime(2026, 1, 1, tzinfo=UTC)
NEVER = 3600.0


def manifest(name: str = "sort", **spec: Any) -> dict[str, Any]:
    """A job that the operator accepts."""
    return {
        "apiVersion": "rlhf-operator.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "data": {"train": {"builtin": "SortDigits"}},
            "rewards": [{"function": {"entrypoint": "rlhf_runtime.rewards.exact_match:score"}}],
            "schedule": {"steps": 10, "promptsPerStep": 4},
            "rollout": {"samplesPerPrompt": 2},
            "image": {"runtime": "runtime:1"},
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
            "resources": {
                "nodePools": [{"name": "a100", "nodes": 2, "devicesPerNode": 4, "gpu": "A100-80G"}]
            },
            **spec,
        },
    }


def claim(name: str = "shared", mode: str = "ReadWriteMany") -> dict[str, Any]:
    """A volume claim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": [mode]},
    }


async def _at_once(namespace: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """No thread is needed where nothing waits."""
    return function(*arguments)


class NoPlanner(Planner):
    """Knows every plan at once: planning has tests of its own."""

    def __init__(self) -> None:
        self.answer: PlanResult | None = PlanResult(unknown="not planned in this test")

    def plan(self, job: object, then: Callable[[], None]) -> PlanResult | None:
        return self.answer


@dataclass
class World:
    """Everything; one method for each thing that happens."""

    heads: FakeHeads
    kube: FakeKube = field(default_factory=FakeKube)
    settings: Settings = field(default_factory=Settings)
    defaults: JobDefaults = field(default_factory=JobDefaults)
    identity: Identity = Identity(b"k" * 32, "rlhf-system/rlhf-operator")
    seconds: float = 0.0
    """Since the beginning."""
    queue_holds: bool = False
    """Whether new clusters are suspended at their creation, as Kueue's webhook does."""
    client: HttpClient = field(default_factory=HttpClient)
    """What carries requests to heads."""
    watches_are_late: bool = False
    """Whether what changes is told when the test says so only."""
    untold: list[tuple[str, Kind, Manifest]] = field(default_factory=list)
    _pods: Iterator[int] = field(default_factory=itertools.count)
    _due: dict[Key, float] = field(default_factory=dict)
    _changed: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.planner = NoPlanner()
        self.metrics = Metrics(self.now)
        self.kube.now = self.now
        self.start_operator()
        self.kube.changed = self._on_change

    def start_operator(self) -> None:
        """A new process of the operator: it knows nothing but what is written."""
        self.untold.clear()
        self.cached = CachedKube(self.kube)
        for (kind, _, _), each in self.kube.objects.items():
            if kind in WATCHED:
                self.cached.put(kind, copy.deepcopy(each))
        observer = Observer(
            self.cached,
            self.identity,
            self.planner,
            self.defaults,
            clock=lambda: self.seconds,
            now=self.now,
        )
        dial = HttpHeads(self.heads.route, self.client).head
        self.reconciler = Reconciler(
            self.cached,
            observer,
            RayHeads(self.identity, dial, clock=lambda: self.seconds),
            Performer(self.cached, self.identity, "rlhf-system"),
            self.metrics,
            _at_once,
            self.settings,
            now=self.now,
        )
        for kind, namespace, name in self.kube.objects:
            if kind is Kind.JOB:
                self._changed.add((namespace, name))

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def tell(self) -> None:
        """Watches tell what has changed."""
        told, self.untold = self.untold, []
        for type, kind, object in told:
            metadata = object["metadata"]
            key = job_key(kind, metadata)
            (self.cached.drop if type == "DELETED" else self.cached.put)(kind, object)
            if key is not None:
                self._changed.add(key)

    def _on_change(self, type: str, kind: Kind, object: Manifest) -> None:
        metadata = object["metadata"]
        if kind is Kind.CLUSTER and type == "ADDED" and self.queue_holds:
            made = self.kube.objects[kind, metadata["namespace"], metadata["name"]]
            made["spec"] = {**made["spec"], "suspend": True}
        if kind in WATCHED:
            self.untold.append((type, kind, copy.deepcopy(object)))
        if not self.watches_are_late:
            self.tell()

    # What the operator does

    def reconcile(self, key: Key) -> None:
        """Reconcile a job; after an error of Kubernetes again."""
        self._changed.discard(key)
        self._due.pop(key, None)
        try:
            again = now(self.reconciler.reconcile(key, lambda: self._changed.add(key)))
        except KubeError:
            self._changed.add(key)
            return
        if again is not None:
            self._due[key] = self.seconds + again

    def settle(self, limit: int = 200) -> None:
        """Reconcile until nothing is due."""
        for _ in range(limit):
            due = {key for key, time in self._due.items() if time <= self.seconds}
            if not (self._changed | due):
                return
            for key in sorted(self._changed | due):
                self.reconcile(key)
        raise AssertionError(f"the operator finds no rest: {self.kube.writes[-10:]}")

    def wait(self, seconds: float) -> None:
        """Let time pass; reconciles happen when they are due."""
        end = self.seconds + seconds
        self.settle()
        while True:
            next_time = min(self._due.values(), default=float("inf"))
            if next_time > end:
                break
            self.seconds = max(self.seconds + 0.001, next_time)
            self.settle()
        self.seconds = end
        self.settle()

    # What users and others do

    def submit(self, document: Mapping[str, Any], with_claim: bool = True) -> None:
        if with_claim and (Kind.CLAIM, NAMESPACE, "shared") not in self.kube.objects:
            self.kube.create(claim())
        self.kube.create(document)

    def edit_job(self, name: str = "sort", **spec: Any) -> None:
        self.kube.edit(Kind.JOB, NAMESPACE, name, lambda job: job["spec"].update(spec))

    def delete_job(self, name: str = "sort") -> None:
        self.kube.remove(Kind.JOB, NAMESPACE, name)

    def suspend_cluster(self, suspend: bool, name: str = "sort-1") -> None:
        """What Kueue does."""
        self.kube.edit(
            Kind.CLUSTER, NAMESPACE, name, lambda each: each["spec"].update(suspend=suspend)
        )

    # What KubeRay and the kubelets do

    def run_kuberay(self, ready: bool = True) -> None:
        """Every cluster gets the pods that it lacks, and they become ready."""
        for kind, _, name in sorted(self.kube.objects, key=lambda place: place[1:]):
            if kind is Kind.CLUSTER:
                self._run_cluster(name, ready)

    def _run_cluster(self, name: str, ready: bool) -> None:
        cluster = self.kube.objects[Kind.CLUSTER, NAMESPACE, name]
        if cluster["spec"].get("suspend"):
            for pod in self.pods(name):
                self.kube.remove(Kind.POD, NAMESPACE, pod)
            return
        there = self.pods(name)  # KubeRay makes no pod beside one that has still to end
        if not any("-head-" in pod for pod in there):
            self._make_pod(cluster, "head", "headgroup")
        have = Counter(self.labels_of(pod).get("ray.io/group") for pod in there)
        for group in cluster["spec"]["workerGroupSpecs"]:
            for _ in range(group["replicas"] - have[group["groupName"]]):
                self._make_pod(cluster, "worker", group["groupName"])
        if ready:
            for pod in filterfalse(self.is_ending, self.pods(name)):
                self.bind(pod)
                self.set_pod(pod, conditions=[{"type": "Ready", "status": "True"}])

    def _make_pod(self, cluster: Mapping[str, Any], role: str, group: str) -> None:
        metadata = cluster["metadata"]
        if role == "head":
            self.heads.head(NAMESPACE, metadata["name"]).restart()
        self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{metadata['name']}-{role}-{next(self._pods)}",
                    "namespace": NAMESPACE,
                    "labels": {
                        **metadata["labels"],
                        "ray.io/cluster": metadata["name"],
                        "ray.io/node-type": role,
                        "ray.io/group": group,
                    },
                    "ownerReferences": [
                        {
                            "kind": "RayCluster",
                            "name": metadata["name"],
                            "uid": metadata["uid"],
                            "controller": True,
                        }
                    ],
                },
                "status": {},
            }
        )

    def bind(self, pod: str) -> None:
        """Give a pod a node."""
        self.kube.edit(Kind.POD, NAMESPACE, pod, lambda each: each.update(spec={"nodeName": "n"}))

    def set_pod(self, pod: str, **status: Any) -> None:
        self.kube.edit(Kind.POD, NAMESPACE, pod, lambda each: each["status"].update(status))

    def pods(self, cluster: str = "sort-1") -> list[str]:
        return [
            name
            for kind, _, name in self.kube.objects
            if kind is Kind.POD and self.labels_of(name)["ray.io/cluster"] == cluster
        ]

    def labels_of(self, pod: str) -> dict[str, str]:
        labels: dict[str, str] = self.kube.objects[Kind.POD, NAMESPACE, pod]["metadata"]["labels"]
        return labels

    def is_ending(self, pod: str) -> bool:
        return "deletionTimestamp" in self.kube.objects[Kind.POD, NAMESPACE, pod]["metadata"]

    def kill_pod(self, role: str, cluster: str = "sort-1") -> None:
        pod = next(name for name in self.pods(cluster) if f"-{role}-" in name)
        if role == "head":
            self.heads.head(NAMESPACE, cluster).restart()
        self.kube.remove(Kind.POD, NAMESPACE, pod)

    def tell_pod(self, pod: str) -> None:
        """The watch's event about a pod, which app.py hands on before a reconcile."""
        raw = self.kube.objects[Kind.POD, NAMESPACE, pod]
        observed = parse_pod(raw)
        problem = named_problem(observed)
        assert problem is not None
        job = raw["metadata"]["labels"]["rlhf-operator.dev/job"]
        self.reconciler.observer.remember((NAMESPACE, job), observed.owner, problem)

    # What tests ask

    def job(self, name: str = "sort") -> dict[str, Any]:
        return self.kube.objects[Kind.JOB, NAMESPACE, name]

    def labels(self, name: str = "sort") -> dict[str, str]:
        return {"rlhf-operator.dev/job": name}

    def head(self, cluster: str = "sort-1") -> FakeHead:
        return self.heads.head(NAMESPACE, cluster)

    def status(self, name: str = "sort") -> RLHFJobStatus:
        return read_status(self.kube.objects[Kind.JOB, NAMESPACE, name].get("status", {}))

    def phase(self, name: str = "sort") -> tuple[str, str | None]:
        status = self.status(name)
        return status.phase, status.reason

    def condition(self, type: ConditionType, name: str = "sort") -> tuple[str, str] | None:
        for each in self.status(name).conditions:
            if each.type is type:
                return each.status, each.reason
        return None

    def events(self) -> list[str]:
        return [
            each["reason"]
            for (kind, _, _), each in self.kube.objects.items()
            if kind is Kind.CORE_EVENT
        ]

    def told(self, reason: str) -> list[str]:
        """What events of a reason say."""
        return [
            each["message"]
            for (kind, _, _), each in self.kube.objects.items()
            if kind is Kind.CORE_EVENT and each["reason"] == reason
        ]

    def manifest_of(self, cluster: str) -> dict[str, Any]:
        """The manifest that the pods of a cluster mount."""
        made = self.kube.objects[Kind.CLUSTER, NAMESPACE, cluster]
        volumes = made["spec"]["headGroupSpec"]["template"]["spec"]["volumes"]
        (name,) = [each["configMap"]["name"] for each in volumes if each["name"] == "job"]
        mounted = self.kube.objects[Kind.CONFIG_MAP, NAMESPACE, name]
        manifest: dict[str, Any] = yaml.safe_load(mounted["data"]["job.yaml"])
        return manifest

    def clusters(self) -> list[str]:
        return [name for kind, _, name in self.kube.objects if kind is Kind.CLUSTER]

    # Shortcuts to a state

    def run_to_training(self, document: Mapping[str, Any] | None = None) -> None:
        """Submit a job, give it pods, let its driver do a step."""
        self.submit(document or manifest())
        self.settle()
        self.run_kuberay()
        self.settle()
        self.head().advance(1)
        self.wait(self.settings.poll_seconds)

    def run_to_end(self) -> None:
        """Let a job that waits for its pods train and succeed."""
        self.settle()
        cluster = self.clusters()[0]
        self.run_kuberay()
        self.settle()
        self.head(cluster).advance(1)
        self.wait(self.settings.poll_seconds)
        self.head(cluster).finish()
        self.wait(10)

    def fail_driver(self) -> None:
        """The driver ends with an error that may not come again, and the next one starts."""
        before = len(self.head().submitted)
        self.head().end(4)
        self.wait(60)
        assert len(self.head().submitted) == before + 1, self.phase()
